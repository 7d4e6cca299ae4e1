package stream

import "golang.org/x/sys/cpu"

var canFold = cpu.X86.HasPCLMULQDQ && cpu.X86.HasSSE2

// foldBlocks is the checksum of the sixteen bytes of lo and hi and of the blocks of
// sixteen behind them, as sixteen gives it for no blocks.
//
//go:noescape
func foldBlocks(lo, hi uint64, p *byte, blocks int, k *foldings) uint64
