package wire

import "strconv"

// Features is the negotiated set of requests and answers beyond the first
// version. The low 32 bits are the words client_features and server_features,
// the high 32 bits the words with _hi; [Auth] and [AuthOK] split and join them.
type Features uint64

// The feature bits of the protocol. A bit is served by the server, read by the
// client, or both, as docs/protocol.md says.
const (
	FeatureTopology            Features = 1 << 0
	FeatureRedirect            Features = 1 << 1
	FeatureCacheDelete         Features = 1 << 2
	FeatureConsumerGroup       Features = 1 << 3
	FeatureGroupDeadLetters    Features = 1 << 4
	FeatureStreamShards        Features = 1 << 5
	FeatureCacheWatch          Features = 1 << 6
	FeatureCacheWatchRetained  Features = 1 << 7
	FeatureCounters            Features = 1 << 8
	FeatureIdempotentProducer  Features = 1 << 9
	FeatureCacheShards         Features = 1 << 10
	FeatureErrorCodes          Features = 1 << 11
	FeatureShardMoved          Features = 1 << 12
	FeatureUnsupported         Features = 1 << 13
	FeatureSequenceReused      Features = 1 << 14
	FeaturePublishPipeline     Features = 1 << 15
	FeatureAtomicCommit        Features = 1 << 16
	FeatureStreamPublishWindow Features = 1 << 17
	FeatureShardOwners         Features = 1 << 18
	FeatureAckOnCommit         Features = 1 << 19
	FeatureGroupConsumer       Features = 1 << 20
	FeatureSubscriptionLagged  Features = 1 << 21
	FeatureGroupSkipped        Features = 1 << 22
	FeatureGroupPublisher      Features = 1 << 23
	FeatureGroupAdmin          Features = 1 << 24
	FeatureCacheConditional    Features = 1 << 25
	FeatureRecordTimestamps    Features = 1 << 26
	FeatureGroupClaimControl   Features = 1 << 27
	FeaturePublishConditional  Features = 1 << 28
	FeatureStreamRead          Features = 1 << 29
	FeatureSubscribeQueue      Features = 1 << 30
	// FeatureExtended marks that the second word counts.
	FeatureExtended      Features = 1 << 31
	FeatureInspect       Features = 1 << 32
	FeatureExplicitShard Features = 1 << 35
)

// Has reports whether all bits of want are set.
func (f Features) Has(want Features) bool { return f&want == want }

// Words splits the set into the two words of the protocol. The marker bit
// [FeatureExtended] is always set in lo when hi is not zero; alone it says that
// the peer reads the second word.
func (f Features) Words() (lo, hi uint32) {
	hi = uint32(f >> 32)
	lo = uint32(f)
	if hi != 0 {
		lo |= uint32(FeatureExtended)
	}
	return lo, hi
}

// JoinFeatures joins the two words. hi counts only when lo has the marker.
func JoinFeatures(lo, hi uint32) Features {
	if lo&uint32(FeatureExtended) == 0 {
		hi = 0
	}
	return Features(lo) | Features(hi)<<32
}

var featureNames = func() (names [64]string) {
	for i := range names {
		names[i] = "bit" + strconv.Itoa(i)
	}
	copy(names[:], []string{
		"TOPOLOGY", "REDIRECT", "CACHE_DELETE", "CONSUMER_GROUP", "GROUP_DEAD_LETTERS", "STREAM_SHARDS", "CACHE_WATCH",
		"CACHE_WATCH_RETAINED", "COUNTERS", "IDEMPOTENT_PRODUCER", "CACHE_SHARDS", "ERROR_CODES", "SHARD_MOVED", "UNSUPPORTED",
		"SEQUENCE_REUSED", "PUBLISH_PIPELINE", "ATOMIC_COMMIT", "STREAM_PUBLISH_WINDOW", "SHARD_OWNERS", "ACK_ON_COMMIT",
		"GROUP_CONSUMER", "SUBSCRIPTION_LAGGED", "GROUP_SKIPPED", "GROUP_PUBLISHER", "GROUP_ADMIN", "CACHE_CONDITIONAL",
		"RECORD_TIMESTAMPS", "GROUP_CLAIM_CONTROL", "PUBLISH_CONDITIONAL", "STREAM_READ", "SUBSCRIBE_QUEUE", "EXTENDED", "INSPECT",
	})
	names[35] = "EXPLICIT_SHARD"
	return names
}()

// String lists the bits by their protocol names, joined by a vertical bar.
func (f Features) String() string { return bitNames(uint64(f), featureNames[:]) }
