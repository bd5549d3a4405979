//go:build linux

package gvisor_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/layer/pool"
	"github.com/seed46cd37a8/atoll/layer/registry"
	"github.com/seed46cd37a8/atoll/provider/providertest"
	"github.com/seed46cd37a8/atoll/storage/store/sqlite"
)

// Warm sandboxes keep the promises of sandboxes that are made on demand. Unlike those of
// mock, over which package pool runs the suite, they outlive the program, and can be paused
// and snapshot.
func TestPool(t *testing.T) {
	needGVisor(t)
	files := map[atoll.Provider]string{}
	below := map[atoll.Provider]atoll.Provider{}
	around := func(t *testing.T, p atoll.Provider, file string, o pool.Options) atoll.Provider {
		t.Helper()
		l, err := pool.New(registry.New(p, sqlite.New(file), registry.Options{Server: true}), sqlite.New(file), o)
		if err != nil {
			t.Fatal(err)
		}
		files[l], below[l] = file, p
		return l
	}
	groups := []string{"restart", "pause", "snapshot", "registry"}
	if testenv.RunAll() {
		groups = append(groups, "create") // the pool's own tests run it over mock and local
	}
	providertest.Run(t, func(t *testing.T) atoll.Provider {
		l := around(t, openProvider(t), t.TempDir()+"/atoll.db", pool.Options{Server: true, Entries: []pool.Entry{{Name: "plain", Min: 2}}})
		waitStocked(t, l)
		return l
	}, providertest.Slow(3), providertest.Leaks(listLeaks), providertest.Count(10),
		providertest.Only(groups...),
		providertest.Reopen(func(t *testing.T, p atoll.Provider) atoll.Provider {
			return around(t, reopen(t, below[p]), files[p], pool.Options{})
		}))
}

// waitStocked waits until a pool is full.
func waitStocked(t *testing.T, p atoll.Provider) {
	t.Helper()
	var problem string
	for end := time.Now().Add(testenv.Scale(time.Minute)); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		report, err := pool.ReportOf(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		one := report.Pools[0]
		if one.Warm == one.Min {
			return
		}
		problem = fmt.Sprintf("%d of %d: %s", one.Warm, one.Min, one.Problem)
	}
	t.Fatal(problem)
}
