package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/storage/store"
	"github.com/seed46cd37a8/atoll/storage/store/sqlstore"
)

// made creates the tables of a test and returns their schema, for tests whose timeout is too short for that.
func made(t testing.TB, on *testenv.PostgresServer) string {
	t.Helper()
	name := schema(t, "")
	if _, err := at(t, on.URL(name)).Identity(t.Context()); err != nil {
		t.Fatal(err)
	}
	return name
}

// at opens the store at a URL. It closes the store when the test ends.
func at(t testing.TB, url string, change ...func(*Server)) *Store {
	t.Helper()
	server, err := New(Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range change {
		c(server)
	}
	s := server.Store()
	t.Cleanup(func() { s.Close() })
	return s
}

// sqlAt connects to the server without a Store.
func sqlAt(t testing.TB, url string) *sql.DB {
	t.Helper()
	server, err := New(Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	server.config.ConnectTimeout = testenv.Scale(time.Minute) // while many programs start, the server answers late
	db := stdlib.OpenDB(*server.config)
	t.Cleanup(func() { db.Close() })
	return db
}

func record() *store.Record {
	return &store.Record{ID: atoll.NewID(), Scope: "scope", State: store.Creating, Created: time.Now()}
}

func insert(t testing.TB, s *Store) *store.Record {
	t.Helper()
	r := record()
	if _, err := s.Insert(t.Context(), r, "secret", store.Limits{}); err != nil {
		t.Fatalf("Insert: %v", err)
	}
	return r
}

func wantKind(t testing.TB, what string, err error, want atoll.Kind, texts ...string) {
	t.Helper()
	if atoll.KindOf(err) != want {
		t.Errorf("%s: %v (%v), want %v", what, err, atoll.KindOf(err), want)
	}
	for _, text := range texts {
		if !strings.Contains(fmt.Sprint(err), text) {
			t.Errorf("%s: %v, want an error with %q", what, err, text)
		}
	}
}

// hasty sets a short timeout, for calls that should fail. On a busy machine it may be too short for calls that should
// succeed; use other stores for those.
func hasty(s *Server) { s.callTimeout = haste }

// haste is shorter than the server's own limits, so that it ends first.
var haste = min(testenv.Scale(time.Second), callTimeout/2)

// connected makes a hasty store connect, however many attempts that takes.
func connected(t testing.TB, s *Store) {
	t.Helper()
	for end := time.Now().Add(testenv.Scale(time.Minute)); ; {
		_, err := s.Records(t.Context())
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("Records: %v", err)
		}
	}
}

func count(t testing.TB, s *Store) int {
	t.Helper()
	all, err := s.Records(t.Context())
	if err != nil {
		t.Fatalf("Records: %v", err)
	}
	return len(all)
}

// Wherever a connection breaks, each operation is done exactly once.
func TestBroken(t *testing.T) {
	on := testenv.Postgres(t)
	for name, how := range map[string]fault{"before it arrives": cut, "before the answer": lose} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t, on)
			s := at(t, p.url(schema(t, "")))
			insert(t, s)
			for n := 1; ; n++ {
				seen := 0
				p.set(func(kind byte, _ string) fault {
					if how == lose && !strings.ContainsRune("\x00QS", rune(kind)) {
						return pass // the message has no answer
					}
					if seen++; seen == n {
						return how
					}
					return pass
				})
				r := record()
				r.Spec.Name = fmt.Sprint("n", n)
				kept, err := s.Insert(t.Context(), r, "secret", store.Limits{Most: 1000})
				if err != nil || kept != "secret" {
					t.Errorf("Insert that breaks at message %d: %q, %v", n, kept, err)
				}
				r.State = store.Present
				if err := s.Update(t.Context(), r); err != nil {
					t.Errorf("Update after a break at message %d: %v", n, err)
				}
				if found, err := s.Find(t.Context(), r.ID); err != nil || found.Rev != 2 || found.State != store.Present {
					t.Errorf("Find after a break at message %d: %+v, %v", n, found, err)
				}
				if seen < n {
					break // it was done without this message
				}
			}
			p.set(func(byte, string) fault { return pass })
		})
	}
}

// The store finds out whether a commit without an answer was made, and repeats it if not.
func TestCommitWithoutAnswer(t *testing.T) {
	on := testenv.Postgres(t)
	for name, how := range map[string]fault{"not made": cut, "made": lose} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t, on)
			s := at(t, p.url(schema(t, "")))
			insert(t, s)
			commits := 0
			p.set(func(kind byte, text string) fault {
				if kind == 'Q' && strings.HasSuffix(text, "COMMIT\x00") {
					if commits++; commits == 1 {
						return how
					}
				}
				return pass
			})
			r := insert(t, s)
			if want := map[fault]int{cut: 2, lose: 1}[how]; commits != want {
				t.Errorf("%d commits, want %d", commits, want)
			}
			if err := s.Delete(t.Context(), r, true); err != nil {
				t.Errorf("Delete: %v", err)
			}
			if n := count(t, s); n != 1 {
				t.Errorf("there are %d records", n)
			}
		})
	}
}

// The store finds out the same if all connections lose the answers of their commits.
func TestManyCommitsWithoutAnswer(t *testing.T) {
	p := newProxy(t, testenv.Postgres(t))
	s := at(t, p.url(schema(t, "")))
	insert(t, s)
	commits := 0
	p.set(func(kind byte, text string) fault {
		if kind == 'Q' && strings.HasSuffix(text, "COMMIT\x00") {
			if commits++; commits <= maxConnections {
				return lose
			}
		}
		return pass
	})
	var all sync.WaitGroup
	var met atomic.Int32
	for n := range 2 * maxConnections {
		all.Go(func() {
			err := tables{s}.Write(t.Context(), func(ctx context.Context, tx sqlstore.Tx) error {
				for met.Add(1); met.Load() < maxConnections && ctx.Err() == nil; {
					time.Sleep(time.Millisecond)
				}
				_, err := tx.ExecContext(ctx, "INSERT INTO places (scope, place) VALUES (?, '')", fmt.Sprint(n))
				return err
			})
			if err != nil {
				t.Errorf("Write: %v", err)
			}
		})
	}
	all.Wait()
	var n int
	err := tables{s}.Read(t.Context(), func(ctx context.Context, db sqlstore.Querier) error {
		return db.QueryRowContext(ctx, "SELECT count(*) FROM places").Scan(&n)
	})
	if err != nil || n != 2*maxConnections {
		t.Errorf("%d were written, %v; want %d", n, err, 2*maxConnections)
	}
}

// If the outcome of a commit cannot be found out, the error says so.
func TestCommitThatNobodyKnowsOf(t *testing.T) {
	on := testenv.Postgres(t)
	p, name := newProxy(t, on), made(t, on)
	s, other := at(t, p.url(name), hasty), at(t, on.URL(name))
	insert(t, other)
	connected(t, s)
	var lost atomic.Bool
	p.set(func(kind byte, text string) fault {
		switch {
		case lost.Load():
			return cut
		case kind == 'Q' && strings.HasSuffix(text, "COMMIT\x00"):
			lost.Store(true)
			return lose
		}
		return pass
	})
	var err error
	for end := time.Now().Add(testenv.Scale(time.Minute)); !lost.Load() && time.Now().Before(end); { // the timeout may end before the commit
		_, err = s.Insert(t.Context(), record(), "", store.Limits{})
	}
	wantKind(t, "Insert", err, atoll.ErrUnavailable, "unknown whether")
	p.set(func(byte, string) fault { return pass })
	n := count(t, other)
	for end := time.Now().Add(testenv.Scale(10 * time.Second)); n != 2 && time.Now().Before(end); n = count(t, other) { // the service may still be committing
	}
	if n != 2 {
		t.Errorf("there are %d records", n)
	}
}

// A killed server loses nothing that a call reported as written. Calls fail while the server is down, and work
// afterwards.
func TestServerKilled(t *testing.T) {
	on := testenv.OwnPostgres(t)
	url := on.URL("atoll")
	s := at(t, url, func(s *Server) { s.leaseTerm = term(10 * time.Minute) })
	insert(t, s)
	holder, err := s.Holder(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var written, refused []string
	var end atomic.Bool
	var work sync.WaitGroup
	for range 4 {
		mine := at(t, url)
		work.Go(func() {
			for !end.Load() {
				r := record()
				_, err := mine.Insert(context.Background(), r, r.ID, store.Limits{})
				mu.Lock()
				switch {
				case err == nil:
					written = append(written, r.ID)
				case atoll.KindOf(err) != atoll.ErrUnavailable:
					t.Errorf("Insert: %v (%v), want ErrUnavailable", err, atoll.KindOf(err))
				case !strings.Contains(err.Error(), "unknown whether"):
					refused = append(refused, r.ID)
				}
				mu.Unlock()
				if err != nil {
					time.Sleep(10 * time.Millisecond)
				}
			}
		})
	}
	enough := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(written) >= 10 && len(refused) >= 3
	}
	for n := 0; n < 3 || n < 50 && !enough(); n++ {
		time.Sleep(200 * time.Millisecond) // in the middle of an operation
		on.Kill()
		_, err := s.Records(t.Context())
		wantKind(t, "Records without a server", err, atoll.ErrUnavailable, on.Socket())
		_, err = s.Insert(t.Context(), record(), "", store.Limits{})
		wantKind(t, "Insert without a server", err, atoll.ErrUnavailable)
		on.Start(t)
		if _, err := s.Records(t.Context()); err != nil {
			t.Errorf("Records after the restart: %v", err)
		}
		if ok, err := at(t, url).IsAlive(t.Context(), holder); !ok || err != nil {
			t.Errorf("Alive of a holder from before the restart: %v, %v", ok, err)
		}
	}
	time.Sleep(200 * time.Millisecond)
	end.Store(true)
	work.Wait()
	if !enough() {
		t.Errorf("%d were written and %d refused, want some", len(written), len(refused))
	}
	for _, id := range written {
		if raw, err := s.Secret(t.Context(), id); raw != id || err != nil {
			t.Fatalf("Secret of a written record: %q, %v", raw, err)
		}
	}
	for _, id := range refused {
		if _, err := s.Find(t.Context(), id); atoll.KindOf(err) != atoll.ErrNotFound {
			t.Errorf("Find of a refused record: %v, want ErrNotFound", err)
		}
	}
	t.Logf("%d written, %d refused", len(written), len(refused))
}

// A call whose context ends returns at once, and its change is not made later. Other calls fail after the timeout.
func TestOthersInTheWay(t *testing.T) {
	on := testenv.Postgres(t)
	url := on.URL(made(t, on))
	limit := testenv.Scale(time.Minute) // a call that ignores its context takes longer
	s := at(t, url+"&statement_timeout=0", func(s *Server) { s.callTimeout = 2 * limit })
	hurried := at(t, url, hasty)
	insert(t, s)
	other, err := sqlAt(t, url+"&idle_in_transaction_session_timeout=0").Begin()
	if err == nil {
		_, err = other.Exec("LOCK TABLE sandboxes")
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begun := time.Now()
	if _, err := s.Insert(ctx, record(), "", store.Limits{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Insert with a deadline: %v", err)
	}
	if _, err := s.Records(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Records with a deadline: %v", err)
	}
	if took := time.Since(begun); took > limit {
		t.Errorf("calls with a deadline took %s", took)
	}
	_, err = hurried.Insert(t.Context(), record(), "", store.Limits{})
	wantKind(t, "Insert", err, atoll.ErrUnavailable, haste.String())
	_, err = hurried.Records(t.Context())
	wantKind(t, "Records", err, atoll.ErrUnavailable, haste.String())
	if err := other.Rollback(); err != nil {
		t.Fatal(err)
	}
	if n := count(t, s); n != 1 {
		t.Errorf("there are %d records, want the first one", n)
	}
}

// A call fails if the server goes silent.
func TestSilence(t *testing.T) {
	on := testenv.Postgres(t)
	p, name := newProxy(t, on), made(t, on)
	s, other := at(t, p.url(name), hasty), at(t, on.URL(name))
	insert(t, other)
	connected(t, s)
	p.set(func(byte, string) fault { return stall })
	_, err := s.Records(t.Context())
	wantKind(t, "Records", err, atoll.ErrUnavailable, "does not answer")
	_, err = s.Insert(t.Context(), record(), "", store.Limits{})
	wantKind(t, "Insert", err, atoll.ErrUnavailable, "does not answer")
	p.set(func(byte, string) fault { return pass })
	connected(t, s)
	if n := count(t, other); n != 1 {
		t.Errorf("there are %d records, want the first one", n)
	}
}

// In a deadlock, both transactions succeed in the end.
func TestDeadlock(t *testing.T) {
	on := testenv.Postgres(t)
	var begun, met atomic.Int32
	lock := func(s *Store, first, second string) error {
		return tables{s}.Write(t.Context(), func(ctx context.Context, tx sqlstore.Tx) error {
			begun.Add(1)
			if err := tx.Lock(ctx, first); err != nil {
				return err
			}
			for met.Add(1); met.Load() < 2 && ctx.Err() == nil; {
				time.Sleep(time.Millisecond)
			}
			return tx.Lock(ctx, second)
		})
	}
	var all sync.WaitGroup
	for _, names := range [][2]string{{"a", "b"}, {"b", "a"}} {
		s := open(t, on, "")
		if _, err := s.Identity(t.Context()); err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			if err := lock(s, names[0], names[1]); err != nil {
				t.Errorf("Write: %v", err)
			}
		})
	}
	all.Wait()
	if begun.Load() < 3 {
		t.Errorf("%d transactions began, want a retry after the deadlock", begun.Load())
	}
}

// An operation that always fails with a serialization error is given up at some time.
func TestRetriesEnd(t *testing.T) {
	s := open(t, testenv.Postgres(t), "")
	n := 0
	err := tables{s}.Write(t.Context(), func(context.Context, sqlstore.Tx) error {
		n++
		return &pgconn.PgError{Code: serialization}
	})
	wantKind(t, "Write", tables{s}.Failed("write", "", err), atoll.ErrUnavailable, "blocked by other clients")
	if n != maxTries {
		t.Errorf("tried %d times, want %d", n, maxTries)
	}
}
