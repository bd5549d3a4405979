// Package teststore has tests of what is written down run over each store: in SQLite, and
// once more in PostgreSQL.
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
	"github.com/seed46cd37a8/atoll/storage/store/sqlite"
)

// urlVar holds the URL of the database, without the schema, in a test program that is to
// use one.
const urlVar = "ATOLL_TEST_STORE"

// A Store is one that keeps all.
type Store interface {
	store.Store
	session.Store
	store.Conversations
}

// Lease is the time after which PostgreSQL stores take a killed program for ended.
var Lease = max(10*time.Second, testenv.Scale(5*time.Second))

// ShortLease is Lease for programs that are killed at once. A busy machine may keep a program
// that runs from renewing so short a lease.
const ShortLease = postgres.MinLease

// Open opens the store that belongs to a directory: atoll.db in it, or tables of its own
// in the database of OverPostgres. Programs that are started with our environment open the
// same.
func Open(dir string) Store { return OpenFor(dir, Lease) }

// OpenFor is Open with another lease than Lease.
func OpenFor(dir string, lease time.Duration) Store {
	url := os.Getenv(urlVar)
	if url == "" {
		return sqlite.New(filepath.Join(dir, "atoll.db"))
	}
	sum := sha256.Sum256([]byte(dir))
	server, err := postgres.New(postgres.Options{URL: url + "t" + hex.EncodeToString(sum[:8]), Lease: lease})
	if err != nil {
		panic(err) // the URL is ours
	}
	return server.Store()
}

// InPostgres reports whether Open opens tables of a database: there, whoever was killed
// counts as alive until his lease ends.
func InPostgres() bool { return os.Getenv(urlVar) != "" }

// OverPostgres runs tests of this program once more, with Open in PostgreSQL: those that
// match run, and not skip.
func OverPostgres(t *testing.T, run, skip string) {
	t.Helper()
	if InPostgres() {
		t.Skip("this is it")
	}
	if testing.Short() {
		t.Skip("-short: one store only")
	}
	on := testenv.OwnPostgres(t)
	not := "^" + t.Name() + "$"
	if skip != "" {
		not += "|" + skip
	}
	args := []string{"-test.v", "-test.count=1", "-test.run=" + run, "-test.skip=" + not, "-test.parallel=8"} // those wait for leases to end
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), urlVar+"="+on.URL(""))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("over PostgreSQL: %v\n%s", err, out)
	}
	if !strings.Contains(string(out), "--- PASS: ") {
		t.Errorf("over PostgreSQL no test has run:\n%s", out)
	}
}

// AfterKill waits until a program that was killed, and used a store with that lease, does not
// count as one that runs any longer.
func AfterKill(lease time.Duration) {
	if InPostgres() {
		time.Sleep(max(lease, time.Until(began.Add(Lease))) + 200*time.Millisecond)
	}
}

// began is when the server had been started already, which gives whoever there was before as
// long as whoever asks would have.
var began = time.Now()
