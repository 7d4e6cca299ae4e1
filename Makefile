# Targets beyond `go test ./...`. Each fails when what it checks is broken.
# ROUNDS, SEEDS, CRASH_SEEDS, SOAK_TIME, FUZZTIME, FUZZ_TIMES and BENCH_ARGS make a run longer or
# shorter.

GO ?= go
FUZZTIME ?= 30s
FUZZ_TIMES ?=
ROUNDS ?= 200
APPEND_ROUNDS ?= $(shell echo $$((5 * $(ROUNDS))))
CRASH_SEEDS ?= 5000
SEEDS ?= 2000
SOAK_TIME ?= 1h
SOAK_OUT ?= out/soak
BENCH_ARGS ?=

.PHONY: build test vet race interop crash crash-sim compaction recovery sim soak fuzz bench guards cases deploy deploy-unit

build:
	$(GO) build -o felix ./cmd/felix

test:
	$(GO) test ./...

vet:
	$(GO) vet ./...
	GOOS=darwin $(GO) vet ./...
	@bad=$$(gofmt -l cmd client internal storage wire); test -z "$$bad" || { echo "not gofmt-ed: $$bad"; exit 1; }

race:
	$(GO) test -race ./...

# The published Python client, unmodified, against a broker of this tree.
interop: build
	./interop/run.sh

# kill -9 for each fsync mode: of a broker under load, ROUNDS times, and of a process that
# appends to a log, five times as often.
crash:
	FELIX_CRASH_ROUNDS=$(ROUNDS) $(GO) test -count=1 -timeout 4h -run 'TestKill' -v ./internal/e2e
	FELIX_CRASH_ROUNDS=$(APPEND_ROUNDS) $(GO) test -count=1 -timeout 4h -run '^TestKill$$' -v ./storage/crashtest

# Seeded crash scripts of the log on a disk that loses power, CRASH_SEEDS of them.
crash-sim:
	FELIX_CRASH_SEEDS=$(CRASH_SEEDS) $(GO) test -count=1 -timeout 4h -v ./storage/crashtest

# Seeded runs of the replication simulator: SEEDS with the real log on a disk that loses
# power, a twentieth of that with logs in memory for each profile, and the table of clauses.
# A failing seed prints the command that replays it.
sim:
	$(GO) test -count=1 -timeout 4h -v -run '^(TestSeeds|TestProfiles|TestMutations|TestEveryClauseHasAMutation)$$' ./internal/testkit/sim -sim.seeds=$(SEEDS)

# A million keys written five times, then kill -9 during compaction 50 times. Minutes, and
# a GiB of disk.
compaction:
	FELIX_COMPACTION_KEYS=1000000 FELIX_COMPACTION_KILLS=50 $(GO) test -count=1 -timeout 4h -run 'TestCompactionUnderKills' -v ./internal/e2e

# Everything at once against one broker for SOAK_TIME; samples and a picture in SOAK_OUT.
# Fails if memory, goroutines or descriptors go on rising, or a second's p99.9 stands out that
# the machine itself did not lose.
soak: build
	FELIX_SOAK_BROKER=$(CURDIR)/felix FELIX_SOAK_TIME=$(SOAK_TIME) FELIX_SOAK_OUT=$(abspath $(SOAK_OUT)) $(GO) test -count=1 -timeout 0 -run 'TestSoak$$' -v ./internal/soak

# Every fuzz target of every package, FUZZTIME each: a time, or with an x a count of runs.
# FUZZ_TIMES sets it for targets by name: FUZZ_TIMES="FuzzIndexLoad=5m FuzzFrame=10000x".
fuzz:
	@set -eu; for dir in $$(grep -rl '^func Fuzz' --include='*_test.go' --exclude-dir=testdata . | xargs -n 1 dirname | sort -u); do \
		targets=$$($(GO) test -list '^Fuzz' $$dir); \
		for target in $$(printf '%s\n' "$$targets" | sed -n '/^Fuzz/p'); do \
			time=$(FUZZTIME); \
			for entry in $(FUZZ_TIMES); do case $$entry in "$$target="*) time=$${entry#*=};; esac; done; \
			echo "== $$dir $$target $$time"; \
			$(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $$time -fuzzminimizetime 10x $$dir; \
		done; \
	done

bench: build
	./felix bench $(BENCH_ARGS)

# Counts of flushes, bytes, frames and allocations, and ratios within one run.
guards:
	$(GO) test -count=1 -run 'Guard' ./...

# The cases of docs/testing.md in their full sizes: 79 for five minutes, 106 with a million
# frames, 113 with 2 GiB of each stream, 114 with 100,000 publishes; 10,000 shards opened with
# 4,096 descriptors, and at rest. A quarter of an hour, and 5 GiB of disk.
cases:
	FELIX_TEST_LONG=1 FELIX_FUZZ_FRAMES=1000000 $(GO) test -count=1 -timeout 2h -v -run '^(TestCase79ProduceAndConsumeAtOnce|TestFuzzedFrames|TestSubscriberThatDoesNotRead|TestClientThatDoesNotReadAnswers)$$' ./storage ./internal/server
	FELIX_SHARDS=10000 $(GO) test -count=1 -timeout 1h -v -run '^(TestLogsShareFewDescriptors|TestGuardIdleShardsCostNothing)$$' ./storage ./internal/broker

# A broker killed after 20 GiB starts with the memory it had used for writing them.
recovery:
	FELIX_RECOVERY_MIB=20480 $(GO) test -count=1 -timeout 1h -run 'TestCase117' -v ./internal/e2e

# What is deployed: the Dockerfile's own steps and what its image starts, without an engine;
# and the unit of systemd. The rules and the dashboard are a test of ./internal/obs.
deploy: deploy-unit
	./deploy/docker/check

# systemd-analyze verify, where it is installed; FELIX_DEPLOY_STRICT=1 fails without it.
deploy-unit:
	./deploy/systemd/check
