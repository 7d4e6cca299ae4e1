package sim

import (
	"fmt"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/felixlog/felix/internal/meta"
	"github.com/felixlog/felix/internal/replica"
	"github.com/felixlog/felix/storage"
)

// historyTime bounds the judgement of one history. One that takes longer is counted as
// not judged, never as good.
const historyTime = 20 * time.Second

// never is the return of an operation that was not answered.
const never = int64(1) << 62

// judgeHistory judges what clients were told as histories: publishes (and conditional
// ones, which are how a writer fences others) against a log, registers one by one. An
// operation without an answer took effect if its record is in the log at the end, and
// then at any time after its call.
//
// Only quorum writes promise as much, and only while no loss happened that the table of
// acknowledgements allows.
func (c *checker) judgeHistory(n *node) {
	if c.w.shape.Same || c.w.shape.Consistency != meta.ConsistencyQuorum || c.lossy || c.anyAllowed() {
		return
	}
	where := map[string]offset{}
	p := n.shard.ports[0]
	err := p.records(p.head(), p.next(), func(r *storage.Record) {
		if r.Kind != storage.KindGenerationStart {
			where[string(r.Payload)] = r.Offset
		}
	})
	if err != nil {
		c.w.fail("log", "read at the end: %v", err)
		return
	}
	if c.w.shape.Workload == StreamWorkload {
		c.judgePublishes(where, p.head())
		return
	}
	c.judgeRegisters(where)
}

// appendInput is a publish: count records, at Expected if conditional.
type appendInput struct {
	conditional bool
	expected    offset
	count       int
}

type appendOutput struct {
	at      offset
	refused bool
	tail    offset
}

// logModel is a log that appends take their offsets from, ascending. Its state is the
// least offset the next append may get: between two appends a new leader may have put a
// record of its own.
var logModel = porcupine.Model{
	Init: func() any { return offset(0) },
	Step: func(state, input, output any) (bool, any) {
		next, in, out := state.(offset), input.(appendInput), output.(appendOutput)
		if out.refused {
			// Refused because the next offset was tail, and not the expected one.
			return out.tail >= next && out.tail != in.expected, max(next, out.tail)
		}
		if out.at < next || in.conditional && out.at != in.expected {
			return false, state
		}
		return true, out.at + offset(in.count)
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

func (c *checker) judgePublishes(where map[string]offset, head offset) {
	var ops []porcupine.Operation
	for _, op := range c.ops {
		if op.kind != opPublish && op.kind != opPlain && op.kind != opPublishIf {
			continue
		}
		in := appendInput{conditional: op.kind == opPublishIf, expected: offset(op.expected), count: len(op.payloads)}
		o := porcupine.Operation{ClientId: op.client, Input: in, Call: int64(op.call), Return: int64(op.ret)}
		switch op.outcome {
		case replica.OutcomeDone:
			out := appendOutput{at: op.offset, refused: op.mismatch, tail: op.tail}
			if at, ok := where[op.payloads[0]]; ok && !op.mismatch && at != op.offset {
				c.w.fail("offsets", "client %d was told offset %d; its record is at %d", op.client, op.offset, at)
				return
			}
			o.Output = out
		default:
			at, ok := where[op.payloads[0]]
			if !ok {
				continue
			}
			// Of a batch that was not acknowledged a crash may have kept the front.
			in.count = 1
			for in.count < len(op.payloads) {
				if next, ok := where[op.payloads[in.count]]; !ok || next != at+offset(in.count) {
					break
				}
				in.count++
			}
			o.Input, o.Output, o.Return = in, appendOutput{at: at}, never
		}
		ops = append(ops, o)
	}
	if c.explain(ops) {
		return
	}
	c.linearizable(logModel, ops, "publishes")
}

// explain looks for two publishes that ended and began in the other order than their
// offsets say: the usual violation, told better than by the history as a whole.
func (c *checker) explain(ops []porcupine.Operation) bool {
	place := func(o *porcupine.Operation) (from, to offset) {
		in, out := o.Input.(appendInput), o.Output.(appendOutput)
		if out.refused {
			return out.tail, out.tail
		}
		return out.at, out.at + offset(in.count)
	}
	for i := range ops {
		in, out := ops[i].Input.(appendInput), ops[i].Output.(appendOutput)
		if out.refused && out.tail == in.expected || in.conditional && !out.refused && out.at != in.expected {
			c.w.fail("conditions", "client %d: %+v -> %+v", ops[i].ClientId, in, out)
			return true
		}
		for j := range ops {
			_, a := place(&ops[i])
			b, _ := place(&ops[j])
			if out := ops[j].Output.(appendOutput); ops[i].Return < ops[j].Call && a > b && i != j && (!out.refused || b < a) {
				c.w.fail("real-time order", "client %d: %+v -> %+v ended at %v; client %d: %+v -> %+v began later, at %v", ops[i].ClientId, ops[i].Input, ops[i].Output,
					time.Duration(ops[i].Return), ops[j].ClientId, ops[j].Input, ops[j].Output, time.Duration(ops[j].Call))
				return true
			}
		}
	}
	return false
}

type registerInput struct {
	kind     opKind
	value    uint64
	expected uint64
}

type registerOutput struct {
	value    uint64
	mismatch bool
}

// registerModel is one register with compare-and-set.
var registerModel = porcupine.Model{
	Init: func() any { return uint64(0) },
	Step: func(state, input, output any) (bool, any) {
		have, in, out := state.(uint64), input.(registerInput), output.(registerOutput)
		switch {
		case in.kind == opGet:
			return out.value == have, state
		case in.kind == opPut:
			return true, in.value
		case out.mismatch:
			return have == out.value && have != in.expected, state
		}
		return have == in.expected, in.value
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

func (c *checker) judgeRegisters(where map[string]offset) {
	byKey := map[uint8][]porcupine.Operation{}
	for _, op := range c.ops {
		o := porcupine.Operation{
			ClientId: op.client, Call: int64(op.call), Return: int64(op.ret),
			Input:  registerInput{op.kind, op.value, op.expected},
			Output: registerOutput{op.got, op.mismatch},
		}
		if op.outcome != replica.OutcomeDone {
			if op.kind == opGet {
				continue
			}
			if _, ok := where[op.payloads[0]]; !ok {
				continue
			}
			o.Return = never
		}
		byKey[op.key] = append(byKey[op.key], o)
	}
	for key := range uint8(8) {
		if c.w.violation == nil && len(byKey[key]) > 0 {
			c.linearizable(registerModel, byKey[key], fmt.Sprintf("register %d", key))
		}
	}
}

func (c *checker) linearizable(m porcupine.Model, ops []porcupine.Operation, what string) {
	c.w.stats.Judged++
	switch porcupine.CheckOperationsTimeout(m, ops, historyTime) {
	case porcupine.Illegal:
		c.w.fail("linearizable", "the history of %s (%d operations) has no order", what, len(ops))
	case porcupine.Unknown:
		c.w.stats.Judged--
		c.w.stats.Unjudged++
	}
}
