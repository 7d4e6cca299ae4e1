// Package obs is what an operator sees: the metrics and the construction of the
// program's log.
//
// Metrics owns a registry of its own, so that two brokers in one process do not
// meet. Counters and histograms are driven by the event structs of storage,
// broker and server (see events.go); what has a present value is asked for at
// the scrape, through Gauges. Nothing here runs between scrapes: the package
// starts no goroutine, and an event costs atomic additions only.
//
// The names that begin with felix_storage_ are promised to operators and do not
// change; TestPromisedMetrics holds them.
package obs
