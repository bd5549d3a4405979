// Package teststore runs tests of stored data with each store: with SQLite, and again with PostgreSQL.
package teststore

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/storage/store"
	"github.com/seed46cd37a8/atoll/storage/store/postgres"
	"github.com/seed46cd37a8/atoll/storage/store/postgres/settings"
	"github.com/seed46cd37a8/atoll/storage/store/sqlite"
)

// urlVar is a variable with the URL of the database, without the schema, for a test program that uses
// PostgreSQL.
const urlVar = "ATOLL_TEST_STORE"

// A Store implements all store interfaces.
type Store interface {
	store.Store
	session.Store
	store.Conversations
}

// Lease is the time after which PostgreSQL stores consider a killed program ended.
var Lease = max(10*time.Second, testenv.Scale(5*time.Second))

// ShortLease is a lease for programs that are killed at once. On a busy machine, a running program may
// fail to renew so short a lease.
const ShortLease = settings.MinLease

// Open opens the store of a directory: atoll.db in it, or its own schema in the database of
// OverPostgres. Child processes with this environment open the same store.
func Open(dir string) Store { return OpenFor(dir, Lease) }

// OpenFor is Open with another lease.
func OpenFor(dir string, lease time.Duration) Store {
	url := os.Getenv(urlVar)
	if url == "" {
		return sqlite.New(filepath.Join(dir, "atoll.db"))
	}
	sum := sha256.Sum256([]byte(dir))
	server, err := postgres.New(postgres.Options{URL: url + "t" + hex.EncodeToString(sum[:8]), Lease: lease})
	if err != nil {
		panic(err) // OverPostgres made the URL
	}
	return server.Store()
}

// InPostgres reports whether Open uses PostgreSQL. There, a killed program counts as running until its
// lease expires.
func InPostgres() bool { return os.Getenv(urlVar) != "" }

// OverPostgres runs tests of this program again, with Open in PostgreSQL: those that match run but not
// skip.
func OverPostgres(t *testing.T, run, skip string) {
	t.Helper()
	if InPostgres() {
		t.Skip("running over PostgreSQL")
	}
	if testing.Short() {
		t.Skip("-short: one store only")
	}
	on := testenv.OwnPostgres(t)
	not := "^" + t.Name() + "$"
	if skip != "" {
		not += "|" + skip
	}
	args := []string{"-test.v", "-test.count=1", "-test.run=" + run, "-test.skip=" + not, "-test.parallel=8"} // some tests wait for leases to expire
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), urlVar+"="+on.URL(""))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("over PostgreSQL: %v\n%s", err, out)
	}
	if !strings.Contains(string(out), "--- PASS: ") {
		t.Errorf("over PostgreSQL: no test ran:\n%s", out)
	}
}

// AfterKill waits until a killed program that used a store with this lease no longer counts as
// running.
func AfterKill(lease time.Duration) {
	if InPostgres() {
		time.Sleep(max(lease, time.Until(programStart.Add(Lease))) + 200*time.Millisecond)
	}
}

// programStart is the start of this program, before which the PostgreSQL server was started. After its
// start, a server waits for a lease before it considers earlier programs ended.
var programStart = time.Now()
