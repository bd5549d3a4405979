//go:build !linux

package testenv

import (
	"errors"
	"testing"
)

// A PostgresServer is a server on a socket in its own directory. It is available only on Linux.
type PostgresServer struct{ dir string }

func newPostgres() (*PostgresServer, error) { return nil, errors.ErrUnsupported }

// Kill kills the server.
func (s *PostgresServer) Kill() {}

// Start restarts a killed server.
func (s *PostgresServer) Start(t testing.TB) {}

func (s *PostgresServer) stopAndRemove() {}
