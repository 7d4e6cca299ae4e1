package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/felixlog/felix/client"
	"github.com/felixlog/felix/internal/logtool"
	"github.com/felixlog/felix/wire"
)

// Exit codes.
const (
	exitOK          = 0
	exitOther       = 1
	exitUsage       = 2
	exitUnreachable = 3
	exitRefused     = 4
	exitMissing     = 5
)

// exitError is an error whose exit code is known where it arises.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// namedFile refuses a file or directory of the command line that is not there: an
// argument that is wrong, whichever command it is of.
func namedFile(name string) error {
	if _, err := os.Stat(name); err != nil {
		return &exitError{exitUsage, err}
	}
	return nil
}

// ranError marks an error of a command that was parsed and ran; every other one
// comes from parsing.
type ranError struct{ err error }

func (e *ranError) Error() string { return e.err.Error() }
func (e *ranError) Unwrap() error { return e.err }

// exitCode classifies an error.
func exitCode(err error) int {
	var (
		known   *exitError
		ran     *ranError
		failure *wire.Failure
		offline *logtool.UsageError
	)
	switch {
	case errors.As(err, &known):
		return known.code
	case !errors.As(err, &ran), errors.As(err, &offline):
		return exitUsage
	case clientExit(err) != exitOK:
		return clientExit(err)
	case errors.As(err, &failure):
		switch failure.Code {
		case wire.CodeNotFound:
			return exitMissing
		case 0, wire.CodeInternal, wire.CodeStorage, wire.CodeUnacknowledged:
			return exitOther
		}
		return exitRefused
	case isNetwork(err), isTLS(err):
		return exitUnreachable
	case errors.Is(err, context.DeadlineExceeded):
		return exitUnreachable
	}
	return exitOther
}

// clientExit is the code of what the client reports, exitOK for other errors.
func clientExit(err error) int {
	for _, k := range []struct {
		kind error
		code int
	}{
		{client.ErrOutcomeUnknown, exitOther}, {client.ErrNotFound, exitMissing},
		{client.ErrUnauthenticated, exitRefused}, {client.ErrForbidden, exitRefused}, {client.ErrInvalidRequest, exitRefused},
		{client.ErrShardUnavailable, exitRefused}, {client.ErrOverloaded, exitRefused}, {client.ErrLimitExceeded, exitRefused},
		{client.ErrStaleClaim, exitRefused}, {client.ErrCursorTooOld, exitRefused}, {client.ErrInFuture, exitRefused},
		{client.ErrOffsetMismatch, exitRefused}, {client.ErrTooLarge, exitRefused}, {client.ErrUnsupported, exitRefused},
		{client.ErrUnavailable, exitUnreachable}, {client.ErrConnectionLost, exitUnreachable},
	} {
		if errors.Is(err, k.kind) {
			return k.code
		}
	}
	return exitOK
}

// isNetwork reports that nobody was reached.
func isNetwork(err error) bool {
	var (
		network *net.OpError
		dns     *net.DNSError
	)
	return errors.As(err, &network) || errors.As(err, &dns)
}

// isTLS reports a handshake that failed: somebody is there, but nobody we trust.
func isTLS(err error) bool {
	var (
		verify *tls.CertificateVerificationError
		header tls.RecordHeaderError
		alert  tls.AlertError
		host   x509.HostnameError
		ca     x509.UnknownAuthorityError
	)
	return errors.As(err, &verify) || errors.As(err, &header) || errors.As(err, &alert) || errors.As(err, &host) || errors.As(err, &ca)
}
