package sqlite_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/storage/store"
	"github.com/seed46cd37a8/atoll/storage/store/sqlite"
	"github.com/seed46cd37a8/atoll/storage/store/storetest"
)

// writerFile names a variable that turns the test binary into a program that writes to the store in that file until
// it is killed. The program prints the id of each record that it has written.
const writerFile = "ATOLL_TEST_WRITER_FILE"

func TestMain(m *testing.M) {
	if path := os.Getenv(writerFile); path != "" {
		fmt.Fprintln(os.Stderr, writeForever(path))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func writeForever(path string) error {
	s, ctx := sqlite.New(path), context.Background()
	for {
		r := &store.Record{ID: atoll.NewID(), State: store.Creating, Created: time.Now()}
		if _, err := s.Insert(ctx, r, r.ID, store.Limits{}); err != nil {
			return err
		}
		fmt.Println(r.ID)
	}
}

func TestStore(t *testing.T) {
	dirs := map[string]string{} // by subtest; all stores of a subtest share a directory
	storetest.Run(t, func(t *testing.T, name string) storetest.Store {
		if dirs[t.Name()] == "" {
			dirs[t.Name()] = t.TempDir()
		}
		return sqlite.New(filepath.Join(dirs[t.Name()], name+".db"))
	})
}

func TestConversations(t *testing.T) {
	dirs := map[string]string{}
	storetest.RunConversations(t, func(t *testing.T, name string) store.Conversations {
		if dirs[t.Name()] == "" {
			dirs[t.Name()] = t.TempDir()
		}
		return sqlite.New(filepath.Join(dirs[t.Name()], name+".db"))
	})
}

func TestKeys(t *testing.T) {
	dirs := map[string]string{}
	storetest.RunKeys(t, func(t *testing.T, name string) store.Keys {
		if dirs[t.Name()] == "" {
			dirs[t.Name()] = t.TempDir()
		}
		return sqlite.New(filepath.Join(dirs[t.Name()], name+".db"))
	})
}

func TestAudit(t *testing.T) {
	dirs := map[string]string{}
	storetest.RunAudit(t, func(t *testing.T, name string) store.Audit {
		if dirs[t.Name()] == "" {
			dirs[t.Name()] = t.TempDir()
		}
		return sqlite.New(filepath.Join(dirs[t.Name()], name+".db"))
	})
}

// A killed program loses nothing that a call reported as written, even if other programs write and open the file for
// the first time.
func TestKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "atoll.db")
	var mu sync.Mutex
	var written []string
	var all sync.WaitGroup
	for round := range 3 {
		for writer := range 3 {
			cmd := exec.Command(os.Args[0])
			cmd.Env, cmd.Stderr = append(os.Environ(), writerFile+"="+path), os.Stderr
			out, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			all.Go(func() {
				lines := bufio.NewScanner(out)
				for n := 0; lines.Scan(); n++ {
					mu.Lock()
					written = append(written, lines.Text())
					mu.Unlock()
					if n == 5+7*round+3*writer {
						cmd.Process.Kill()
					}
				}
				_ = cmd.Wait() // it was killed
			})
		}
		all.Wait()
	}
	s := sqlite.New(path)
	defer s.Close()
	if len(written) < 50 {
		t.Errorf("only %d records were written", len(written))
	}
	for _, id := range written {
		if r, err := s.Find(t.Context(), id); err != nil || r.State != store.Creating {
			t.Fatalf("Find of a written record: %v, %v", r, err)
		}
		if raw, err := s.Secret(t.Context(), id); raw != id || err != nil {
			t.Fatalf("Secret of a written record: %q, %v", raw, err)
		}
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a b?c#d%e", "atoll.db") // characters with a meaning in URIs
	s := sqlite.New(path)
	if _, err := os.Stat(filepath.Dir(path)); !os.IsNotExist(err) {
		t.Errorf("the store opened its file before it was needed: %v", err)
	}
	if _, err := s.Identity(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Holder(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Dir(path) + ".holders/*"); len(left) != 0 {
		t.Errorf("Close left %q", left)
	}
}

// A store that cannot be opened says why and what to do. Each call tries again.
func TestCannotBeOpened(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(t *testing.T, path string)
		kind  atoll.Kind
		text  string
	}{
		{"newer", func(t *testing.T, path string) { execSQL(t, path, "PRAGMA user_version = 99") }, atoll.ErrUnavailable, "a newer Atoll"},
		{"garbage", func(t *testing.T, path string) { writeFile(t, path, strings.Repeat("garbage ", 1000)) }, atoll.ErrInternal, "move it away"},
		{"directory", func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, atoll.ErrInternal, "is a directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "atoll.db")
			tt.spoil(t, path)
			s := sqlite.New(path)
			defer s.Close()
			for range 2 {
				_, err := s.Records(t.Context())
				if atoll.KindOf(err) != tt.kind || !strings.Contains(fmt.Sprint(err), tt.text) || !strings.Contains(fmt.Sprint(err), path) {
					t.Errorf("%v (%v), want %v that says %q", err, atoll.KindOf(err), tt.kind, tt.text)
				}
			}
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Records(t.Context()); err != nil {
				t.Errorf("Records after the repair: %v", err)
			}
		})
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func execSQL(t *testing.T, path, query string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err == nil {
		_, err = db.Exec(query)
	}
	if err == nil {
		err = db.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// This program reads the data of older programs, even two records of one name, which they allowed in two scopes.
func TestOlder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "atoll.db")
	schema, err := os.ReadFile("migrations/0001_sandboxes.sql")
	if err != nil {
		t.Fatal(err)
	}
	execSQL(t, path, string(schema)+`; PRAGMA user_version = 1;
		INSERT INTO sandboxes VALUES ('1', 'one', 'one', 'default', 'web', '{"id":"1","name":"web","project":"default"}', 'present', 0, '', 1000, 7);
		INSERT INTO sandboxes VALUES ('2', 'two', 'two', 'default', 'web', '{"id":"2","name":"web","project":"default"}', 'present', 0, '', 2000, 7);
		INSERT INTO secrets VALUES ('2', 'two', 'raw')`)
	s := sqlite.New(path)
	defer s.Close()
	for scope, want := range map[string]string{"one": "1", "two": "2", "three": "1"} {
		if r, err := s.Named(t.Context(), scope, "default", "web"); err != nil || r.ID != want || r.Rev != 7 || r.Reason != "" {
			t.Errorf("Named of %s: %+v, %v; want %s", scope, r, err, want)
		}
	}
	r, err := s.Find(t.Context(), "2")
	if err == nil {
		r.State = store.Removing
		err = s.Update(t.Context(), r)
	}
	if err == nil {
		err = s.Delete(t.Context(), r, true)
	}
	if err != nil {
		t.Errorf("cannot remove the second record: %v", err)
	}
}

// The store remembers forgotten sandboxes for a limited time, and drops their secrets afterwards.
func TestLongForgotten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "atoll.db")
	s := sqlite.New(path)
	defer s.Close()
	forget := func() string {
		t.Helper()
		r := &store.Record{ID: atoll.NewID(), Scope: "scope", State: store.Present, Created: time.Now()}
		_, err := s.Insert(t.Context(), r, "secret", store.Limits{})
		if err == nil {
			err = s.Forget(t.Context(), r)
		}
		if err != nil {
			t.Fatal(err)
		}
		return r.ID
	}
	id := forget()
	execSQL(t, path, fmt.Sprintf("UPDATE gone SET since = %d", time.Now().AddDate(0, 0, -31).UnixMilli()))
	if is, err := s.Forgotten(t.Context(), id); is || err != nil {
		t.Errorf("Forgotten: %v, %v", is, err)
	}
	if all, err := s.Abandoned(t.Context(), "scope"); len(all) != 1 || err != nil {
		t.Errorf("Abandoned: %q, %v; want %s", all, err, id)
	}
	forget()
	if n := countRows(t, path, "gone"); n != 1 {
		t.Errorf("the store remembers %d sandboxes, want only the last one", n)
	}
}

func countRows(t *testing.T, path, table string) (n int) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err == nil {
		defer db.Close()
		err = db.QueryRow("SELECT count(*) FROM " + table).Scan(&n)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A write waits for another writer; a read does not wait.
func TestAnotherProgramWrites(t *testing.T) {
	path := filepath.Join(t.TempDir(), "atoll.db")
	s := sqlite.New(path)
	defer s.Close()
	if _, err := s.Identity(t.Context()); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", path+"?_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := s.Insert(context.Background(), &store.Record{ID: atoll.NewID(), Created: time.Now()}, "", store.Limits{})
		done <- err
	}()
	other := sqlite.New(path)
	defer other.Close()
	if _, err := other.Records(t.Context()); err != nil {
		t.Errorf("Records while another program writes: %v", err)
	}
	select {
	case err := <-done:
		t.Errorf("Insert did not wait: %v", err)
	default:
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("Insert: %v", err)
	}
}

// A killed holder is never alive, however many callers ask at once.
func TestDeadHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "atoll.db")
	dir := path + ".holders"
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var names []string
	for range 300 {
		names = append(names, atoll.NewID())
		writeFile(t, filepath.Join(dir, names[len(names)-1]), "") // no program locks it
	}
	var all sync.WaitGroup
	var alive atomic.Int32
	for range 4 {
		s := sqlite.New(path)
		t.Cleanup(func() { s.Close() })
		all.Go(func() {
			for _, name := range names {
				switch ok, err := s.IsAlive(t.Context(), name); {
				case err != nil:
					t.Errorf("Alive: %v", err)
				case ok:
					alive.Add(1)
				}
			}
		})
	}
	all.Wait()
	if n := alive.Load(); n > 0 {
		t.Errorf("%d calls reported a dead holder as alive", n)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%d files remain, %v", len(left), err)
	}
}

// A call waits for a program that was stopped while it opened the store, but neither forever nor longer than its
// context lasts.
func TestStuckOpening(t *testing.T) {
	path := filepath.Join(t.TempDir(), "atoll.db")
	lock, err := fsutil.TryLock(path + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		s := sqlite.New(path)
		defer s.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.Records(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Records with a timeout of a second: %v", err)
		}
		if _, err := s.Records(t.Context()); atoll.KindOf(err) != atoll.ErrUnavailable || !strings.Contains(fmt.Sprint(err), path) {
			t.Errorf("Records: %v, want ErrUnavailable that names the store", err)
		}
	})
	lock.Release()
	s := sqlite.New(path)
	defer s.Close()
	if _, err := s.Records(t.Context()); err != nil {
		t.Errorf("Records after the lock was released: %v", err)
	}
}
