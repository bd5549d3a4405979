package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// PostgreSQL is the programs of a PostgreSQL server.
var PostgreSQL = Part{what: "a server of PostgreSQL", install: "postgresql", missing: func() error {
	_, err := postgresDir()
	return err
}}

// postgresDir returns the directory of the server's programs.
func postgresDir() (string, error) {
	var dirs []string
	if path, err := exec.LookPath("postgres"); err == nil {
		dirs = append(dirs, filepath.Dir(path))
	}
	debian, err := filepath.Glob("/usr/lib/postgresql/*/bin") // by version; not in PATH
	dirs = append(dirs, debian...)
	for i := len(dirs) - 1; i >= 0; i-- {
		if _, missing := os.Stat(filepath.Join(dirs[i], "initdb")); missing == nil {
			return dirs[i], nil
		}
	}
	if err == nil {
		err = fmt.Errorf("no initdb in /usr/lib/postgresql or PATH")
	}
	return "", err
}

var postgres struct {
	sync.Mutex
	server *PostgresServer
}

// Postgres needs PostgreSQL and returns the server of this test program. The first call starts it;
// StopPostgres stops it.
func Postgres(t testing.TB) *PostgresServer {
	t.Helper()
	Need(t, PostgreSQL)
	postgres.Lock()
	defer postgres.Unlock()
	if postgres.server == nil {
		s, err := newPostgres()
		if err != nil {
			t.Fatalf("PostgreSQL: %v", err)
		}
		postgres.server = s
	}
	return postgres.server
}

// StopPostgres stops the server, if it runs, and removes its files. TestMain must call it.
func StopPostgres() {
	postgres.Lock()
	defer postgres.Unlock()
	if postgres.server != nil {
		postgres.server.stopAndRemove()
		postgres.server = nil
	}
}

// OwnPostgres needs PostgreSQL and returns a server that ends with the test, for tests that kill it.
func OwnPostgres(t testing.TB) *PostgresServer {
	t.Helper()
	Need(t, PostgreSQL)
	s, err := newPostgres()
	if err != nil {
		t.Fatalf("PostgreSQL: %v", err)
	}
	t.Cleanup(s.stopAndRemove)
	return s
}

// Socket returns the directory of the server's socket.
func (s *PostgresServer) Socket() string { return s.dir }

// URL returns the URL of a schema. Its user is an administrator without a password. The user "locked"
// has the password LockedPassword.
func (s *PostgresServer) URL(schema string) string {
	return "postgres://atoll@/atoll?host=" + s.dir + "&search_path=" + schema
}

// LockedPassword is the password of the user "locked".
const LockedPassword = "open sesame"
