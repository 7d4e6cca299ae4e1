package logtool

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/felixlog/felix/storage"
	"github.com/felixlog/felix/storage/vfs"
)

// sealResult is a sealed segment as it can be checked after a copy.
type sealResult struct {
	ID        storage.SegmentID `json:"segment"`
	Base      storage.Offset    `json:"base"`
	Next      storage.Offset    `json:"next"`
	Bytes     int64             `json:"bytes"`
	FirstTime storage.Micros    `json:"first_timestamp_micros"`
	LastTime  storage.Micros    `json:"last_timestamp_micros"`
	CRC32     string            `json:"crc32"`
}

func sealCommand() *cobra.Command {
	var c command
	cmd := &cobra.Command{
		Use:   "seal --dir DIR",
		Short: "Seal the active segment and print its descriptor and CRC-32",
		Long:  "seal flushes, trims and indexes the active segment and begins a new one. The file is not written again; its CRC-32 is over all its bytes.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// Before the lock, which a directory that holds no log is not given.
			if _, err := shardDirs(vfs.OS(), c.dir); err != nil {
				return err
			}
			return c.locked(true, func(note func() error) error { return c.seal(cmd, note) })
		},
	}
	c.flags(cmd, "shard directory")
	return cmd
}

func (c *command) seal(cmd *cobra.Command, note func() error) (err error) {
	lo := logOptions{fsync: "none", segmentBytes: storage.DefaultSegmentBytes, interval: storage.DefaultFsyncInterval, preallocate: true}
	o, err := lo.storage(c.dir)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	log, err := storage.Open(ctx, c.dir, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close(context.WithoutCancel(ctx))) }()
	if err := note(); err != nil {
		return err
	}
	s, err := log.Seal(ctx)
	if err != nil {
		return err
	}
	r := sealResult{
		ID: s.ID, Base: s.Base, Next: s.Next, Bytes: s.Bytes, FirstTime: s.FirstTime, LastTime: s.LastTime,
		CRC32: fmt.Sprintf("%08x", s.CRC32),
	}
	if c.json {
		return printJSON(cmd.OutOrStdout(), r)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "segment %d sealed: offsets %d to %d (exclusive), %d bytes, CRC-32 %s\n", r.ID, r.Base, r.Next, r.Bytes, r.CRC32)
	return err
}
