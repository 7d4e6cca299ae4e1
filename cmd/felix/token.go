package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/felixlog/felix/internal/auth"
)

func (e *environment) tokenCommand() *cobra.Command {
	return group("token", "Mint tokens", e.tokenMint())
}

func (e *environment) tokenMint() *cobra.Command {
	var (
		perms    []string
		who      string
		audience string
		ttl      time.Duration
	)
	c := &cobra.Command{
		Use:   "mint",
		Short: "Mint a token from the signing key, offline",
		Long: "Mint a token from the context's signing key, or the one of --signing-key, without asking any server. With --tenant it is\n" +
			"the signing key of that tenant, beside the context's.\n" +
			"Without --perm the token may do everything in its tenant.",
		Example: "  felix token mint --perm 'stream.publish:stream:default/default/orders' --ttl 24h\n  felix token mint --tenant acme --ttl 24h\n  felix token mint --audience felix-controlplane",
		Args:    cobra.NoArgs,
	}
	c.RunE = ran(func(c *cobra.Command, _ []string) error {
		id, err := e.identity()
		if err != nil {
			return err
		}
		if id.keyGone != nil {
			return id.keyGone
		}
		if id.SigningKey == "" {
			return usagef("no signing key: "+noContext, "signing-key")
		}
		k, err := auth.LoadSigningKey(id.SigningKey)
		if err != nil {
			return &exitError{exitUsage, err}
		}
		if len(perms) == 0 {
			perms = auth.AllPermissions(id.Tenant)
		}
		if ttl == 0 {
			// Not the default of Mint: it was asked for.
			return usagef("--ttl 0 is valid for no time")
		}
		token, err := k.Mint(auth.MintRequest{Tenant: id.Tenant, Subject: who, Permissions: perms, Audience: audience, TTL: ttl})
		if err != nil {
			return &exitError{exitUsage, err}
		}
		if e.opts.json {
			printJSON(e.out, map[string]any{"felix_token": token, "expires_in": int64(ttl / time.Second), "token_type": "Bearer"})
			return nil
		}
		_, err = fmt.Fprintln(e.out, token)
		return err
	})
	f := c.Flags()
	f.StringArrayVar(&perms, "perm", nil, "permission ACTION:OBJECT; may be repeated")
	f.StringVar(&who, "subject", subject, "who the token is for")
	f.StringVar(&audience, "audience", auth.AudienceBroker, "felix-broker or felix-controlplane")
	f.DurationVar(&ttl, "ttl", auth.DefaultTokenTTL, "how long it is valid")
	complete(c, "audience", auth.AudienceBroker, auth.AudienceAPI)
	return c
}
