package wire

// Auth is the first frame of every client-opened stream.
type Auth struct {
	Tenant, Token string
	// ClientFlags are the flags the client can decode. HasClientFlags is false
	// for a client without negotiation, which is answered with [OK].
	ClientFlags    Flags
	HasClientFlags bool
	// Features are both words, joined; zero when absent.
	Features Features
	// Extensions asks for the names of the extensions served. Ours; other
	// clients never send it.
	Extensions bool
}

// Type is "auth".
func (*Auth) Type() string { return "auth" }

func (m *Auth) fields(c *codec) {
	c.name("tenant_id", &m.Tenant)
	c.view("token", &m.Token)
	flags := uint16(m.ClientFlags)
	c.u16Has("client_flags", &flags, &m.HasClientFlags)
	m.ClientFlags = Flags(flags)
	c.features("client_features", "client_features_hi", &m.Features)
	c.boolDefault("extensions", &m.Extensions)
}

// OK answers an auth without client flags, and a cache put without request id.
type OK struct{}

// Type is "ok".
func (*OK) Type() string { return "ok" }

func (*OK) fields(*codec) {}

// AuthOK answers an auth with client flags.
type AuthOK struct {
	ServerFlags Flags
	Features    Features
	// ListenerPorts are all client ports of the broker, when it has several.
	ListenerPorts []uint16
	// PublishWindow is the count of acked publishes that may be unanswered on a
	// stream; granted only with FeaturePublishPipeline.
	PublishWindow    uint32
	HasPublishWindow bool
	// Extensions are the extensions served, to a client that asked.
	Extensions []string
}

// Type is "auth_ok".
func (*AuthOK) Type() string { return "auth_ok" }

func (m *AuthOK) fields(c *codec) {
	flags := uint16(m.ServerFlags)
	c.u16("server_flags", &flags)
	m.ServerFlags = Flags(flags)
	c.features("server_features", "server_features_hi", &m.Features)
	c.u16List("listener_ports", &m.ListenerPorts)
	c.u32Has("publish_window", &m.PublishWindow, &m.HasPublishWindow)
	c.stringList("extensions", &m.Extensions)
}

// Error refuses a request, or ends a stream with the reason.
type Error struct {
	Failure Failure
}

// Type is "error".
func (*Error) Type() string { return "error" }

func (m *Error) fields(c *codec) {
	c.view("message", &m.Failure.Message)
	c.failure(&m.Failure)
}

// Unsupported answers a request whose type or extension is not served, to a
// client that offered FeatureUnsupported.
type Unsupported struct {
	RequestType string
	// Extension is the name of the extension, if RequestType is "extension".
	Extension    string
	RequestID    uint64
	HasRequestID bool
}

// Type is "unsupported".
func (*Unsupported) Type() string { return "unsupported" }

func (m *Unsupported) fields(c *codec) {
	c.text("request_type", &m.RequestType)
	c.textDefault("extension", &m.Extension)
	c.u64Has("request_id", &m.RequestID, &m.HasRequestID)
}

// NotLeader answers a one-shot request for a shard led elsewhere, to a client
// that offered FeatureRedirect.
type NotLeader struct {
	NodeID string
	// Addr is host and port of the leader's client listener, empty when it
	// publishes none.
	Addr       string
	Generation uint64
}

// Type is "not_leader".
func (*NotLeader) Type() string { return "not_leader" }

func (m *NotLeader) fields(c *codec) {
	c.text("node_id", &m.NodeID)
	c.textDefault("addr", &m.Addr)
	c.u64("generation", &m.Generation)
}
