package postgres

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// writerURL names a variable that turns the test binary into a program that writes to the store at that URL until it
// is killed. The program prints the name of its holder, and the id of each record that it has written.
const writerURL = "ATOLL_TEST_WRITER_URL"

// calmLease is for leases that must not expire, even on a busy machine.
var calmLease = term(max(4*time.Second, testenv.Scale(3*time.Second)))

func writeForever(url string) error {
	server, err := New(Options{URL: url})
	if err != nil {
		return err
	}
	server.leaseTerm = calmLease
	s, ctx := server.Store(), context.Background()
	name, err := s.Holder(ctx)
	if err != nil {
		return err
	}
	fmt.Println(name)
	for {
		r := record()
		r.Holder = name
		if _, err := s.Insert(ctx, r, r.ID, store.Limits{}); err != nil {
			return err
		}
		fmt.Println(r.ID)
	}
}

func isAlive(t testing.TB, s *Store, name string) bool {
	t.Helper()
	is, err := s.IsAlive(t.Context(), name)
	if err != nil {
		t.Fatalf("Alive: %v", err)
	}
	return is
}

func calm(s *Server) { s.leaseTerm = calmLease }

// A killed program loses nothing that a call reported as written, even if many programs start at once on a database
// without tables. It does not count as alive for long.
func TestKill(t *testing.T) {
	url := testenv.Postgres(t).URL(schema(t, ""))
	s, db := at(t, url, calm), sqlAt(t, url)
	until := func(holder string) (end time.Time) {
		if err := db.QueryRowContext(t.Context(), "SELECT until FROM holders WHERE id = $1", holder).Scan(&end); err != nil {
			t.Errorf("lease of a running program: %v", err)
		}
		return end
	}
	var mu sync.Mutex
	var written, holders []string
	var all sync.WaitGroup
	for range 4 {
		cmd := exec.Command(os.Args[0])
		cmd.Env, cmd.Stderr = append(os.Environ(), writerURL+"="+url), os.Stderr
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			lines, holder, killed := bufio.NewScanner(out), "", false
			var first time.Time
			for n := 0; lines.Scan(); n++ {
				mu.Lock()
				if n == 0 {
					holder = lines.Text()
					first = until(holder)
					holders = append(holders, holder)
				} else {
					written = append(written, lines.Text())
				}
				mu.Unlock()
				if n > 20 && !killed && !until(holder).Equal(first) { // the program has renewed its lease, or cannot
					if is, err := s.IsAlive(t.Context(), holder); !is || err != nil {
						t.Errorf("Alive of a running program: %v, %v", is, err)
					}
					killed = true
					cmd.Process.Kill()
				}
			}
			_ = cmd.Wait() // it was killed
		})
	}
	all.Wait()
	if len(holders) != 4 || len(written) < 80 {
		t.Fatalf("%d programs wrote %d records", len(holders), len(written))
	}
	time.Sleep(time.Duration(calmLease) + 100*time.Millisecond)
	for _, name := range holders {
		for range 2 {
			if isAlive(t, s, name) {
				t.Errorf("holder %s was killed, but is alive", name)
			}
		}
	}
	for _, id := range written {
		if raw, err := s.Secret(t.Context(), id); raw != id || err != nil {
			t.Fatalf("Secret of a written record: %q, %v", raw, err)
		}
	}
}

// A running program renews its lease, even if connections break for a shorter time.
func TestRenewed(t *testing.T) {
	p := newProxy(t, testenv.Postgres(t))
	s, other := at(t, p.url(schema(t, "")), calm), at(t, testenv.Postgres(t).URL(schema(t, "")), calm)
	name, err := s.Holder(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 6 {
		time.Sleep(time.Duration(calmLease) / 4)
		p.breakAll()
		if !isAlive(t, other, name) {
			t.Error("the holder is not alive")
		}
	}
	if again, err := s.Holder(t.Context()); again != name || err != nil {
		t.Errorf("Holder is %q and then %q, %v", name, again, err)
	}
}

// held returns the holder of a hasty store, however many attempts that takes.
func held(t testing.TB, s *Store) string {
	t.Helper()
	for end := time.Now().Add(testenv.Scale(time.Minute)); ; {
		name, err := s.Holder(t.Context())
		if err == nil {
			return name
		}
		if time.Now().After(end) {
			t.Fatalf("Holder: %v", err)
		}
	}
}

// A program that cannot renew its lease stops using it. After others have seen it expire, the lease never counts as
// alive again.
func TestLost(t *testing.T) {
	on := testenv.Postgres(t)
	p, name := newProxy(t, on), made(t, on)
	s, other := at(t, p.url(name), calm, hasty), at(t, on.URL(name), calm)
	name = held(t, s)
	p.set(func(byte, string) fault { return stall })
	p.breakAll()
	for gone := time.Now(); isAlive(t, other, name); time.Sleep(20 * time.Millisecond) {
		if time.Since(gone) > testenv.Scale(time.Minute) {
			t.Fatal("the lease does not expire")
		}
	}
	_, err := s.Holder(t.Context())
	wantKind(t, "Holder without a connection", err, atoll.ErrUnavailable)
	p.set(func(byte, string) fault { return pass })
	again := held(t, s)
	if again == name {
		t.Errorf("Holder after the reconnection is %q as before", again)
	}
	if isAlive(t, other, name) || !isAlive(t, other, again) {
		t.Errorf("old lease alive: %v, new one: %v; want only the new one", isAlive(t, other, name), isAlive(t, other, again))
	}
	if err := s.Close(); err != nil || isAlive(t, other, again) {
		t.Errorf("Close: %v; lease alive afterwards: %v", err, isAlive(t, other, again))
	}
}

// While a machine sleeps, its monotonic clock may stand still, but the wall clock goes on.
func TestSlept(t *testing.T) {
	l := &lease{until: time.Now().Add(time.Minute)}
	if !l.isValid() {
		t.Error("a new lease is not valid")
	}
	l.until = time.Now().Round(0).Add(-time.Second)
	if l.isValid() {
		t.Error("an expired lease is valid")
	}
}

func TestMessagesHaveNoPassword(t *testing.T) {
	on := testenv.Postgres(t)
	locked := "postgres://locked:%s@/atoll?host=" + on.Socket() + "&search_path=" + schema(t, "")
	wrong := at(t, fmt.Sprintf(locked, "guess"))
	_, err := wrong.Records(t.Context())
	wantKind(t, "Records with a wrong password", err, atoll.ErrDenied, "check the user and the password")
	if strings.Contains(fmt.Sprintf("%v %+v %q", err, err, err), "guess") {
		t.Errorf("the error has the password: %v", err)
	}
	server, err := New(Options{URL: fmt.Sprintf(locked, "ignored"), Password: func() (string, error) { return testenv.LockedPassword, nil }})
	if err != nil {
		t.Fatal(err)
	}
	s := server.Store()
	defer s.Close()
	if _, err := s.Records(t.Context()); err != nil {
		t.Errorf("Records with the password: %v", err)
	}
}
