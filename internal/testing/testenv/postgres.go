package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// PostgreSQL are the programs of a server of PostgreSQL.
var PostgreSQL = Part{what: "a server of PostgreSQL", install: "postgresql", missing: func() error {
	_, err := postgresDir()
	return err
}}

// postgresDir is where the programs of the server are.
func postgresDir() (string, error) {
	var dirs []string
	if path, err := exec.LookPath("postgres"); err == nil {
		dirs = append(dirs, filepath.Dir(path))
	}
	debian, err := filepath.Glob("/usr/lib/postgresql/*/bin") // by version, and not in PATH
	dirs = append(dirs, debian...)
	for i := len(dirs) - 1; i >= 0; i-- {
		if _, missing := os.Stat(filepath.Join(dirs[i], "initdb")); missing == nil {
			return dirs[i], nil
		}
	}
	if err == nil {
		err = fmt.Errorf("there is no initdb in /usr/lib/postgresql or PATH")
	}
	return "", err
}

var postgres struct {
	sync.Mutex
	server *PostgresServer
}

// Postgres needs PostgreSQL and returns the server of this test program, which is started
// when it is first needed. StopPostgres ends it.
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

// StopPostgres ends the server, if there is one, and removes its files. It is for
// TestMain.
func StopPostgres() {
	postgres.Lock()
	defer postgres.Unlock()
	if postgres.server != nil {
		postgres.server.removeFiles()
		postgres.server = nil
	}
}

// OwnPostgres needs PostgreSQL and returns a server that ends with the test, for those
// that kill it.
func OwnPostgres(t testing.TB) *PostgresServer {
	t.Helper()
	Need(t, PostgreSQL)
	s, err := newPostgres()
	if err != nil {
		t.Fatalf("PostgreSQL: %v", err)
	}
	t.Cleanup(s.removeFiles)
	return s
}

// Socket is the directory of its socket.
func (s *PostgresServer) Socket() string { return s.dir }

// URL is that of a schema of its own for each name. Its user may do everything, and needs
// no password; that of the user locked is LockedPassword.
func (s *PostgresServer) URL(schema string) string {
	return "postgres://atoll@/atoll?host=" + s.dir + "&search_path=" + schema
}

// LockedPassword is the password of a user who needs one.
const LockedPassword = "open sesame"
