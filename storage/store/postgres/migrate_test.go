package postgres

import (
	"context"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/storage/store/postgres/settings"
	"github.com/seed46cd37a8/atoll/storage/store/sqlstore"
)

func execAt(t testing.TB, url string, statements ...string) {
	t.Helper()
	db := sqlAt(t, url)
	for _, s := range statements {
		if _, err := db.Exec(s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// A newer program may have added to the schema. This program goes on, even with an open store, unless the schema
// requires a newer program.
func TestNewer(t *testing.T) {
	url := testenv.Postgres(t).URL(schema(t, ""))
	running := at(t, url)
	r := insert(t, running)
	execAt(t, url, "ALTER TABLE sandboxes ADD COLUMN extra TEXT NOT NULL DEFAULT 'x'", "UPDATE migrations SET version = 99")
	for what, s := range map[string]*Store{"running": running, "new": at(t, url)} {
		if _, err := s.Find(t.Context(), r.ID); err != nil {
			t.Errorf("Find of one that is %s: %v", what, err)
		}
		insert(t, s)
	}
	execAt(t, url, "UPDATE migrations SET oldest = 98")
	s := at(t, url)
	for range 2 {
		_, err := s.Records(t.Context())
		wantKind(t, "Records", err, atoll.ErrUnavailable, "a newer Atoll", "schema 99")
	}
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	execAt(t, url, fmt.Sprintf("UPDATE migrations SET oldest = 0, version = %d", len(files)))
	if n := count(t, s); n != 3 {
		t.Errorf("%d records after the repair, want 3", n)
	}
}

// Migrations only add, unless they set the oldest version that programs need.
func TestMigrationsAdd(t *testing.T) {
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("%q, %v", files, err)
	}
	for n, file := range files {
		if want := fmt.Sprintf("migrations/%04d_", n+1); !strings.HasPrefix(file, want) {
			t.Errorf("%s: want %s...", file, want)
		}
		text, err := migrations.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{"DROP ", "RENAME ", "ALTER COLUMN"} {
			if strings.Contains(string(text), word) && !strings.Contains(string(text), "UPDATE migrations SET oldest") {
				t.Errorf("%s has %q, but does not set migrations.oldest", file, word)
			}
		}
	}
}

// A store that cannot be opened says why. Each call tries again.
func TestCannotBeOpened(t *testing.T) {
	on := testenv.Postgres(t)
	name := schema(t, "")
	latin, user := name+"_latin", name+"_user"
	as := func(user, database string) string {
		return "postgres://" + user + "@/" + database + "?host=" + on.Socket() + "&search_path=" + name
	}
	execAt(t, on.URL("public"), "CREATE DATABASE "+latin+" ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0", "CREATE USER "+user)
	for what, tt := range map[string]struct {
		url  string
		kind atoll.Kind
		text string
	}{
		"no server":         {"postgres://atoll@/atoll?host=/nowhere", atoll.ErrUnavailable, "/nowhere"},
		"no database":       {as("atoll", "none"), atoll.ErrUnavailable, "create it"},
		"no such user":      {as("nobody", "atoll"), atoll.ErrDenied, "check the user"},
		"may make no table": {as(user, "atoll"), atoll.ErrDenied, "grant"},
		"another encoding":  {as("atoll", latin), atoll.ErrUnavailable, "UTF8"},
	} {
		s := at(t, tt.url)
		for range 2 {
			_, err := s.Records(t.Context())
			wantKind(t, what, err, tt.kind, tt.text)
		}
	}
	guest := at(t, as(user, "atoll"))
	_, err := guest.Records(t.Context())
	wantKind(t, "Records", err, atoll.ErrDenied)
	execAt(t, on.URL("public"), "CREATE SCHEMA "+name+" AUTHORIZATION "+user)
	if _, err := guest.Records(t.Context()); err != nil {
		t.Errorf("Records in a schema with the user as owner: %v", err)
	}
}

// If the tables disappear, a running program reports it, and the next program creates them.
func TestRemovedBehindOurBack(t *testing.T) {
	url := testenv.Postgres(t).URL(schema(t, ""))
	s := at(t, url)
	insert(t, s)
	execAt(t, url, "DROP SCHEMA "+schema(t, "")+" CASCADE")
	_, err := s.Records(t.Context())
	wantKind(t, "Records", err, atoll.ErrUnavailable, "tables have been removed")
	if n := count(t, at(t, url)); n != 0 {
		t.Errorf("the new store has %d records", n)
	}
}

func TestURL(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	for text, want := range map[string]string{
		"mysql://a@b/c":                             "postgres://user@host",
		"postgres://a:hunter2@b:port/c":             "",
		"postgres://a:hunter2%zz@b/c":               "postgres://user@host",
		"postgres://a@b/c?search_path=a,b":          "one schema",
		"postgres://a@b/c?search_path=A":            "one schema",
		"postgres://a:hunter2@b/c?sslmode=whatever": "sslmode",
	} {
		_, err := parseURL(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want an error with %q", text, err, want)
		}
	}
	for text, want := range map[string]bool{
		"postgres://a@db.example.com/c":                              true,
		"postgres://a@db.example.com/c?sslmode=disable":              false,
		"postgres://a@127.0.0.1/c?sslmode=disable":                   false,
		"postgres://a@127.0.0.1,db.example.com/c":                    true,
		"postgres://a@/c?host=/run/postgresql":                       false,
		"postgresql://a@db.example.com/c?sslmode=require":            true,
		"postgres://a@db.example.com/c?target_session_attrs=primary": true,
	} {
		config, err := parseURL(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := config.TLSConfig != nil; got != want {
			t.Errorf("%s: with TLS: %v, want %v", text, got, want)
		}
		if !strings.Contains(text, "sslmode") && want && (config.TLSConfig.InsecureSkipVerify || config.TLSConfig.ServerName == "" && !strings.Contains(text, ",")) {
			t.Errorf("%s: the name of the host is not verified", text)
		}
		for _, f := range config.Fallbacks {
			if want && f.TLSConfig == nil {
				t.Errorf("%s: no TLS for %s", text, f.Host)
			}
		}
	}
	for text, want := range map[string]bool{"postgres://a@b/c": false, "postgres://a:b@c/d": true, "postgres://a@b/c?password=d": true} {
		if settings.HasPassword(text) != want {
			t.Errorf("HasPassword(%s) is not %v", text, want)
		}
	}
}

// The stores of a server share its connections. Closing one store does not affect the others.
func TestShared(t *testing.T) {
	server, err := New(Options{URL: testenv.Postgres(t).URL(schema(t, ""))})
	if err != nil {
		t.Fatal(err)
	}
	a, b, unused := server.Store(), server.Store(), server.Store()
	r := insert(t, a)
	name, err := b.Holder(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Store{a, unused, a} {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	_, err = a.Find(t.Context(), r.ID)
	wantKind(t, "Find of a closed store", err, atoll.ErrUnavailable, "closed")
	if _, err := b.Find(t.Context(), r.ID); err != nil {
		t.Errorf("Find after another store was closed: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	again := server.Store()
	defer again.Close()
	if isAlive(t, again, name) {
		t.Error("the holder of a closed store is alive")
	}
	if _, err := again.Find(t.Context(), r.ID); err != nil {
		t.Errorf("Find after all stores were closed: %v", err)
	}
}

// DropSecret waits for a transaction that creates the sandbox of the secret.
func TestDropSecretOfWhatIsBeingMade(t *testing.T) {
	on := testenv.Postgres(t)
	a, b := open(t, on, ""), open(t, on, "")
	r := record()
	if _, err := a.KeepSecret(t.Context(), "scope", r.ID, "first"); err != nil {
		t.Fatal(err)
	}
	dropped := make(chan error, 1)
	err := tables{a}.Write(t.Context(), func(ctx context.Context, tx sqlstore.Tx) error {
		// Insert runs the same statements.
		if _, err := tx.ExecContext(ctx, `INSERT INTO sandboxes (id, scope, provider, project, name, spec, state, volumes, holder, reason, created, rev)
			VALUES (?, '', '', '', '', '{}', '', false, '', '', 0, 1)`, r.ID); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE secrets SET raw = raw WHERE id = ?", r.ID); err != nil {
			return err
		}
		go func() { dropped <- b.DropSecret(context.WithoutCancel(ctx), r.ID) }()
		return waiting(ctx, tx)
	})
	if err == nil {
		err = <-dropped
	}
	if err != nil {
		t.Fatal(err)
	}
	if raw, err := a.Secret(t.Context(), r.ID); raw != "first" || err != nil {
		t.Errorf("Secret of the new sandbox: %q, %v", raw, err)
	}
}

// waiting returns when another transaction waits for this one.
func waiting(ctx context.Context, tx sqlstore.Tx) error {
	for n := 0; n == 0; {
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))").Scan(&n); err != nil {
			return err
		}
	}
	return nil
}
