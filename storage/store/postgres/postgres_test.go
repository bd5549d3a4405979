package postgres

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/storage/store"
	"github.com/seed46cd37a8/atoll/storage/store/storetest"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(writerURL); url != "" {
		fmt.Fprintln(os.Stderr, writeForever(url))
		os.Exit(1)
	}
	// Tests must not use the PostgreSQL settings of this machine.
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "PG") {
			os.Unsetenv(name)
		}
	}
	testenv.VerifyTestMain(stopping{m})
}

// stopping stops the server of all tests after the tests.
type stopping struct{ m *testing.M }

func (s stopping) Run() int {
	defer testenv.StopPostgres()
	return s.m.Run()
}

// schemas has the schemas of running tests, by test and name.
var schemas sync.Map

// schema returns the schema of a test and a name.
func schema(t testing.TB, name string) string {
	key := t.Name() + "/" + name
	drawn, there := schemas.LoadOrStore(key, "t"+atoll.NewID())
	if !there {
		t.Cleanup(func() { schemas.Delete(key) })
	}
	return drawn.(string)
}

// open opens the store with a name, as another program would.
func open(t testing.TB, on *testenv.PostgresServer, name string) *Store {
	t.Helper()
	server, err := New(Options{URL: on.URL(schema(t, name))})
	if err != nil {
		t.Fatal(err)
	}
	s := server.Store()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

func TestStore(t *testing.T) {
	on := testenv.Postgres(t)
	storetest.Run(t, func(t *testing.T, name string) storetest.Store { return open(t, on, name) })
}

func TestConversations(t *testing.T) {
	on := testenv.Postgres(t)
	storetest.RunConversations(t, func(t *testing.T, name string) store.Conversations { return open(t, on, name) })
}

func TestKeys(t *testing.T) {
	on := testenv.Postgres(t)
	storetest.RunKeys(t, func(t *testing.T, name string) store.Keys { return open(t, on, name) })
}

func TestAudit(t *testing.T) {
	on := testenv.Postgres(t)
	storetest.RunAudit(t, func(t *testing.T, name string) store.Audit { return open(t, on, name) })
}
