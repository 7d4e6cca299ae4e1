package wire

// Routing is how keys are spread over the shards of a stream. Caches always
// use RoutingModulo.
type Routing uint8

// The routings of the protocol.
const (
	// RoutingModulo takes the hash modulo the count of shards.
	RoutingModulo Routing = iota
	// RoutingJump is Lamping and Veach's jump consistent hash.
	RoutingJump
)

// String returns the name on the wire.
func (r Routing) String() string {
	if r == RoutingJump {
		return "jump_hash"
	}
	return "modulo"
}

// ParseRouting returns the routing of a name; the empty name is modulo.
func ParseRouting(name string) (r Routing, ok bool) {
	switch name {
	case "", "modulo":
		return RoutingModulo, true
	case "jump_hash":
		return RoutingJump, true
	}
	return 0, false
}

// Shard returns the shard of a key, 0 to shards-1. With one shard or fewer it
// is 0. A record without a key goes to shard 0 without asking this function; an
// empty key is a key. The values are frozen: stored data depends on them.
func Shard(r Routing, key []byte, shards int) int {
	if shards <= 1 {
		return 0
	}
	h := hashKey(key)
	if r == RoutingJump {
		return jump(h, int64(shards))
	}
	return int(h % uint64(shards))
}

// hashKey is FNV-1a of 64 bits followed by the output step of SplitMix64, which
// spreads the low bits that FNV leaves alike for short keys.
func hashKey(key []byte) uint64 {
	h := uint64(0xcbf29ce484222325)
	for _, b := range key {
		h = (h ^ uint64(b)) * 0x100000001b3
	}
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

func jump(h uint64, shards int64) int {
	var b, j int64 = -1, 0
	for j < shards {
		b = j
		h = h*2862933555777941757 + 1
		j = int64(float64(b+1) * (float64(1<<31) / float64((h>>33)+1)))
	}
	return int(b)
}
