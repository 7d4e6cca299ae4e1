// Package felixtest is a broker for tests: it speaks the real protocol over
// real TLS, keeps its records in memory, and can be made to fail.
//
//	b, err := felixtest.Start()
//	defer b.Close()
//	b.CreateStream("orders", 4)
//	c, err := client.Dial(ctx, []string{b.Addr()}, client.WithToken(client.StaticToken(b.Token())), client.WithRootCAs(b.RootCAs()))
//
// It serves publishing, idempotent and conditional, subscriptions, reads, and
// the look-ups they need, for one tenant and namespace, both named default. It
// accepts one token. [Broker.Stop] and [Broker.Restart] act as a broker that
// goes and comes back with its log; [Broker.Intercept] refuses requests, delays
// their answers or loses them.
//
// One goroutine accepts, one serves each connection and one delivers each
// subscription; Close ends them all.
package felixtest
