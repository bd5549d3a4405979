//go:build !linux

package testenv

import (
	"errors"
	"testing"
)

// A PostgresServer is a server on a socket in a directory of its own. Tests start one on
// Linux alone.
type PostgresServer struct{ dir string }

func newPostgres() (*PostgresServer, error) { return nil, errors.ErrUnsupported }

// Kill kills the server.
func (s *PostgresServer) Kill() {}

// Start starts a server that was killed.
func (s *PostgresServer) Start(t testing.TB) {}

func (s *PostgresServer) removeFiles() {}
