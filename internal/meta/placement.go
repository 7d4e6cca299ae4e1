package meta

import (
	"fmt"
	"slices"
	"strconv"
)

// NodeID names a broker process's place in the deployment, for its whole life.
type NodeID string

// DiskID is the random identity of one data directory (node.json). Zero is none.
type DiskID uint64

// Generation is an epoch of leadership of one shard. Generations rise by metadata
// transactions; zero is "never led".
type Generation uint64

// ShardKind says which readings a shard's logs carry.
type ShardKind string

// Kinds of shards.
const (
	ShardOfStream ShardKind = "stream"
	ShardOfCache  ShardKind = "cache"
)

// ShardKey names one shard.
type ShardKey struct {
	Kind  ShardKind `json:"kind"`
	Name  Name      `json:"name"`
	Shard uint32    `json:"shard"`
}

func (k ShardKey) String() string {
	return fmt.Sprintf("%s %s/%d", k.Kind, k.Name, k.Shard)
}

// Member is one replica of a shard: a node, the disk it had when it was listed, and
// the incarnation of the stream its directory belongs to (in the Assignment). A
// directory whose disk or incarnation is another one is a learner.
type Member struct {
	Node NodeID `json:"node"`
	Disk DiskID `json:"disk"`
}

// Assignment says who serves a shard. Every change is a transaction on the version
// that was read; Generation rises with each change of Leader and each reopening.
type Assignment struct {
	Shard       ShardKey   `json:"shard"`
	Incarnation uint64     `json:"incarnation"`
	Generation  Generation `json:"generation"`
	Leader      NodeID     `json:"leader"`
	// LeaderDisk and LeaderOpening name the one opening of a log that Generation was
	// given to: the leader's disk, and its count of openings. The same node reopened
	// leads only at a generation of its own.
	LeaderDisk    DiskID `json:"leader_disk"`
	LeaderOpening uint64 `json:"leader_opening"`
	// Members is the replica set, ascending by node.
	Members []Member `json:"members"`
	// Revision counts the changes of Members within a generation and across them, so
	// that two sets are told apart by a number.
	Revision uint64 `json:"revision"`
}

// Lookup finds a member by node.
func (a *Assignment) Lookup(n NodeID) (Member, bool) {
	for _, m := range a.Members {
		if m.Node == n {
			return m, true
		}
	}
	return Member{}, false
}

// Clone is a copy that shares nothing.
func (a *Assignment) Clone() *Assignment {
	c := *a
	c.Members = slices.Clone(a.Members)
	return &c
}

// Validate checks an assignment.
func (a *Assignment) Validate() error {
	object := "assignment of " + a.Shard.String()
	switch {
	case a.Incarnation == 0:
		return &InvalidError{Object: object, Field: "incarnation", Detail: "is zero"}
	case len(a.Members) == 0 || len(a.Members) > MaxReplicationFactor+1:
		return &InvalidError{Object: object, Field: "members", Detail: "has " + strconv.Itoa(len(a.Members)) + " replicas, at least 1 and at most " + strconv.Itoa(MaxReplicationFactor+1)}
	}
	for i, m := range a.Members {
		if m.Disk == 0 {
			return &InvalidError{Object: object, Field: "members", Detail: "has node " + string(m.Node) + " without a disk"}
		}
		if i > 0 && a.Members[i-1].Node >= m.Node {
			return &InvalidError{Object: object, Field: "members", Detail: "are not ascending by node"}
		}
	}
	if _, ok := a.Lookup(a.Leader); a.Leader != "" && !ok {
		return &InvalidError{Object: object, Field: "leader", Detail: string(a.Leader) + " is not a member"}
	}
	return firstError(
		oneOf(object, "kind", a.Shard.Kind, ShardOfStream, ShardOfCache),
		checkFullName(object, a.Shard.Name),
	)
}

// Lifecycle is what placement may do with a node.
type Lifecycle string

// Lifecycles.
const (
	NodeLive     Lifecycle = "live"
	NodeDraining Lifecycle = "draining"
	NodeDown     Lifecycle = "down"
	NodeLeft     Lifecycle = "left"
)

// Node is a broker as the others know it.
type Node struct {
	ID            NodeID            `json:"id"`
	Disk          DiskID            `json:"disk"`
	AdvertiseAddr string            `json:"advertise_addr,omitempty"` // brokers
	ClientAddr    string            `json:"client_addr,omitempty"`    // clients
	Region        string            `json:"region,omitempty"`
	Zone          string            `json:"zone,omitempty"`
	Labels        map[string]string `json:"labels,omitempty"`
	Lifecycle     Lifecycle         `json:"lifecycle"`
	// Incarnation rises with each registration; an older process of the same id is
	// refused by it.
	Incarnation uint64 `json:"incarnation"`
}

// Validate checks a node.
func (n *Node) Validate() error {
	if err := checkName("node", "id", string(n.ID)); err != nil {
		return err
	}
	if n.Disk == 0 {
		return &InvalidError{Object: "node " + string(n.ID), Field: "disk", Detail: "is zero"}
	}
	return oneOf("node "+string(n.ID), "lifecycle", n.Lifecycle, NodeLive, NodeDraining, NodeDown, NodeLeft)
}
