package server

import (
	"github.com/felixlog/felix/wire"
)

// What is advertised (docs/protocol). Never more than is served.
const (
	// baseFlags: every layout and modifier but the owner of a forwarded publish, which is
	// advertised all the same, as the protocol's bits say what may be met, and the
	// publisher, which only a client that asks for it is sent.
	baseFlags = wire.FlagsOriginal | wire.FlagBinaryPublishAcked | wire.FlagBinaryPublishAck | wire.FlagEventBatchOffsets |
		wire.FlagBinaryPublishKeyed | wire.FlagBinaryPublishAckOwner | wire.FlagBinaryPublishIdempotent |
		wire.FlagBinaryPublishAckCode | wire.FlagBinaryPublishAckDetail | wire.FlagEventBatchSkipped | wire.FlagBinaryPublishAckOffset
	durableFlags = wire.FlagEventBatchTimestamps | wire.FlagEventBatchPublisher

	baseFeatures = wire.FeatureStreamShards | wire.FeatureShardOwners | wire.FeatureIdempotentProducer |
		wire.FeatureSequenceReused | wire.FeatureErrorCodes | wire.FeatureUnsupported |
		wire.FeaturePublishPipeline | wire.FeatureStreamPublishWindow | wire.FeatureSubscribeQueue | wire.FeatureExplicitShard
	durableFeatures = wire.FeatureSubscriptionLagged | wire.FeatureStreamRead | wire.FeatureRecordTimestamps |
		wire.FeaturePublishConditional
)

// negotiate takes in what the client offered and makes the answer. It is called once,
// before anything else of the stream is handled.
func (s *session) negotiate(m *wire.Auth) wire.Message {
	s.features = m.Features
	if !m.HasClientFlags {
		s.flags, s.features = wire.FlagsOriginal, 0
		return &wire.OK{}
	}
	s.flags = m.ClientFlags
	ok := &wire.AuthOK{ServerFlags: s.server.flags, Features: s.server.features}
	if !m.Features.Has(wire.FeatureExtended) {
		ok.Features &= 1<<32 - 1
	}
	s.pipeline = m.Features.Has(wire.FeaturePublishPipeline)
	if s.pipeline {
		ok.PublishWindow, ok.HasPublishWindow = uint32(s.server.limits.PublishWindow), true
	}
	if m.Extensions {
		ok.Extensions = s.server.extensionNames
	}
	return ok
}
