package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/felixlog/felix/internal/config"
	"github.com/felixlog/felix/internal/hangup"
	"github.com/felixlog/felix/internal/node"
	"github.com/felixlog/felix/internal/obs"
)

func (e *environment) serveCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run a broker",
		Long: "Run a broker. Without flags its data is in ./felix-data, clients are served on 127.0.0.1:5000 (QUIC and TLS on TCP)\n" +
			"and API, health and metrics on http://127.0.0.1:8080. The first start makes a private certificate authority, a\n" +
			"signing key, the tenant and namespace `default`, and a context file, so that the other commands need no flags.\n" +
			"A second broker of the same user leaves the first one's context alone: --context NAME has it write one of its own.\n" +
			"`felix config` prints every setting, its value and where it came from.",
		Args: cobra.NoArgs,
		RunE: ran(func(c *cobra.Command, _ []string) error { return e.serve(c) }),
	}
	settingFlags(c.Flags())
	return c
}

func (e *environment) serve(c *cobra.Command) error {
	// One that came before, and one that comes during the start, waits for its end.
	hangups, stopHangups := hangup.Take()
	defer stopHangups()
	cfg, err := e.settings(c)
	if err != nil {
		return err
	}
	log, err := obs.NewLog(e.err, cfg.Options.Log.Level, cfg.Options.Log.Format)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	for _, name := range cfg.UnknownEnv {
		log.Warn("environment variable looks like a setting and is none", "name", name)
	}
	file := e.opts.contextFile
	if file == "" {
		if file, err = config.ContextPath(e.getenv); err != nil {
			log.Warn("no context file is written", "error", err)
			file = ""
		}
	}
	ctx := c.Context()
	n, err := node.Start(ctx, node.Options{Config: cfg.Options, Version: version(), ContextFile: file, Context: e.opts.context, Log: log, Getenv: e.getenv})
	switch {
	case err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled):
		log.Info("stopped before the start was over, as was asked for", "at", err)
		return nil
	case err != nil:
		// Nothing that a client would call unreachable or refused.
		return &exitError{exitOther, err}
	}
	log.Info("serving", "clients", n.ClientAddr(), "http", n.HTTPURL(), "data", cfg.Options.Data, "version", version(), "pid", os.Getpid())

	var failure error
	for running := true; running; {
		select {
		case <-hangups:
			n.Reload()
			continue
		case <-ctx.Done():
			log.Info("stopping", "within", cfg.Options.Shutdown.Timeout.String())
		case failure = <-n.Failed():
			log.Error("stopping: a part of the broker ended by itself", "error", failure)
		}
		running = false
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.Options.Shutdown.Timeout)
	defer cancel()
	if err := n.Stop(stop); err != nil {
		log.Error("stopped with errors", "error", err)
		return fmt.Errorf("stop: %w", err)
	}
	log.Info("stopped")
	return failure
}
