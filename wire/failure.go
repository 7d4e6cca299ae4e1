package wire

import (
	"net/http"
	"time"
)

// Code is the kind of a failure. Zero stands for no code: the peer did not
// negotiate codes.
type Code uint16

// The codes of the protocol, by their numbers.
const (
	CodeUnauthenticated  Code = 1
	CodeForbidden        Code = 2
	CodeNotFound         Code = 3
	CodeInvalidRequest   Code = 4
	CodeShardUnavailable Code = 5
	CodeNotLeader        Code = 6
	CodeQuorumTimeout    Code = 7
	CodeLeadershipLost   Code = 8
	CodeUnacknowledged   Code = 9
	CodeOverloaded       Code = 10
	CodeLimitExceeded    Code = 11
	CodeDraining         Code = 12
	CodeInternal         Code = 13
	CodeStorage          Code = 14
	CodeStaleClaim       Code = 15
)

// Retry says what a caller may do after a failure. RetryNow, RetryAfter and
// RetryRedirect promise that nothing was applied. RetryOutcomeUnknown says that
// the request may have been applied. Zero stands for no class.
type Retry uint8

// The retry classes, by their numbers in binary acks.
const (
	RetryNow            Retry = 1
	RetryAfter          Retry = 2
	RetryRedirect       Retry = 3
	RetryOutcomeUnknown Retry = 4
	RetryFatal          Retry = 5
)

// Reasons that detail a code. Those of shard_unavailable first, then those of
// overloaded, then those of storage and others.
const (
	ReasonNotAssigned       = "not_assigned"
	ReasonOwnerUnavailable  = "owner_unavailable"
	ReasonNotReady          = "not_ready"
	ReasonStale             = "stale"
	ReasonFenced            = "fenced"
	ReasonMoving            = "moving"
	ReasonRegionNotRoutable = "region_not_routable"
	ReasonDamaged           = "damaged"

	ReasonPublishQueueFull = "publish_queue_full"
	ReasonTenantQuota      = "tenant_quota"
	ReasonDiskFull         = "disk_full"
	ReasonCacheFull        = "cache_full"
	ReasonTooManyFiles     = "too_many_files"

	ReasonPoisoned       = "poisoned"
	ReasonRecordTooLarge = "record_too_large"
)

// codeTable is the one table of kind, default class and HTTP status.
var codeTable = [...]struct {
	name   string
	retry  Retry
	status int
}{
	0:                    {"", RetryFatal, http.StatusInternalServerError},
	CodeUnauthenticated:  {"unauthenticated", RetryFatal, http.StatusUnauthorized},
	CodeForbidden:        {"forbidden", RetryFatal, http.StatusForbidden},
	CodeNotFound:         {"not_found", RetryAfter, http.StatusNotFound},
	CodeInvalidRequest:   {"invalid_request", RetryFatal, http.StatusBadRequest},
	CodeShardUnavailable: {"shard_unavailable", RetryNow, http.StatusServiceUnavailable},
	CodeNotLeader:        {"not_leader", RetryRedirect, http.StatusMisdirectedRequest},
	CodeQuorumTimeout:    {"quorum_timeout", RetryOutcomeUnknown, http.StatusGatewayTimeout},
	CodeLeadershipLost:   {"leadership_lost", RetryOutcomeUnknown, http.StatusServiceUnavailable},
	CodeUnacknowledged:   {"unacknowledged", RetryOutcomeUnknown, http.StatusGatewayTimeout},
	CodeOverloaded:       {"overloaded", RetryAfter, http.StatusTooManyRequests},
	CodeLimitExceeded:    {"limit_exceeded", RetryFatal, http.StatusRequestEntityTooLarge},
	CodeDraining:         {"draining", RetryNow, http.StatusServiceUnavailable},
	CodeInternal:         {"internal", RetryOutcomeUnknown, http.StatusInternalServerError},
	CodeStorage:          {"storage", RetryOutcomeUnknown, http.StatusInternalServerError},
	CodeStaleClaim:       {"stale_claim", RetryNow, http.StatusConflict},
}

var retryNames = [...]string{
	0: "", RetryNow: "retry", RetryAfter: "retry_after", RetryRedirect: "redirect", RetryOutcomeUnknown: "outcome_unknown",
	RetryFatal: "fatal",
}

// String returns the name of the code on the wire, "" for zero and "unknown"
// for a number outside the table.
func (c Code) String() string {
	if int(c) < len(codeTable) {
		return codeTable[c].name
	}
	return "unknown"
}

// ParseCode returns the code of a name; ok is false for an unknown name.
func ParseCode(name string) (c Code, ok bool) {
	for i := 1; i < len(codeTable); i++ {
		if codeTable[i].name == name {
			return Code(i), true
		}
	}
	return 0, false
}

// DefaultRetry returns the class of the code when nothing nearer is known.
// Unknown codes are fatal.
func (c Code) DefaultRetry() Retry {
	if int(c) < len(codeTable) {
		return codeTable[c].retry
	}
	return RetryFatal
}

// HTTPStatus returns the status the HTTP API answers the code with.
func (c Code) HTTPStatus() int {
	if int(c) < len(codeTable) {
		return codeTable[c].status
	}
	return http.StatusInternalServerError
}

// String returns the name of the class on the wire, "" for zero. A number
// outside the table reads as fatal.
func (r Retry) String() string {
	if int(r) < len(retryNames) {
		return retryNames[r]
	}
	return retryNames[RetryFatal]
}

// ParseRetry returns the class of a name. An unknown name is fatal.
func ParseRetry(name string) Retry {
	for i := 1; i < len(retryNames); i++ {
		if retryNames[i] == name {
			return Retry(i)
		}
	}
	return RetryFatal
}

// Failure is a refused or failed request as both sides see it. It travels in
// [Error], [PublishError] and [PublishAck], and is an error in Go.
type Failure struct {
	// Code is the kind; zero when the peer sent none or one we do not know.
	Code Code
	// CodeName keeps a code name that is not in our table, with Code zero.
	CodeName string
	// Retry is the class the peer gave; it beats the table.
	Retry Retry
	// Message is for people.
	Message string
	// Reason narrows the code; one of the Reason constants or empty.
	Reason string
	// RetryAfter is how long to wait before trying again, in whole
	// milliseconds on the wire; zero when not given.
	RetryAfter time.Duration
}

// NewFailure returns a failure of the code with its default class.
func NewFailure(c Code, message string) *Failure {
	return &Failure{Code: c, Retry: c.DefaultRetry(), Message: message}
}

// Error returns code, reason and message.
func (f *Failure) Error() string {
	name := f.Code.String()
	if f.Code == 0 {
		name = f.CodeName
	}
	switch {
	case name == "":
		return f.Message
	case f.Reason == "":
		return name + ": " + f.Message
	default:
		return name + " (" + f.Reason + "): " + f.Message
	}
}

// Is reports whether target is a *Failure of the same code, so that
// errors.Is(err, &Failure{Code: CodeNotFound}) asks for the kind alone.
func (f *Failure) Is(target error) bool {
	t, ok := target.(*Failure)
	return ok && t.Code != 0 && t.Code == f.Code && (t.Reason == "" || t.Reason == f.Reason)
}

// WithReason sets the reason and returns f.
func (f *Failure) WithReason(reason string) *Failure {
	f.Reason = reason
	return f
}

// WithRetry sets the class and returns f.
func (f *Failure) WithRetry(r Retry) *Failure {
	f.Retry = r
	return f
}

// After sets how long to wait before trying again and returns f.
func (f *Failure) After(d time.Duration) *Failure {
	f.RetryAfter = d
	return f
}

func (f *Failure) hasDetail() bool { return f.Reason != "" || f.RetryAfter > 0 }

func millis(d time.Duration) uint64 {
	if d <= 0 {
		return 0
	}
	return uint64((d + time.Millisecond - 1) / time.Millisecond)
}

func fromMillis(ms uint64) time.Duration {
	const most = uint64(1<<63-1) / uint64(time.Millisecond)
	return time.Duration(min(ms, most)) * time.Millisecond
}
