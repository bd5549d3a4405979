// Package auto lets atoll.Open use what is there: a running server of atoll serve, or else the program atoll in
// PATH, which it starts. A program that imports it links the client only, and no provider.
//
//	import _ "github.com/seed46cd37a8/atoll/provider/auto"
//
//	p, err := atoll.Open(ctx)
//
// It reads the environment variables of the command line: ATOLL_URL and ATOLL_TOKEN name a server, and
// ATOLL_STATE_DIR the directory of the sandboxes and of the server's socket. ATOLL_PROGRAM is the path of the
// program atoll, if it is not in PATH.
package auto

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
	"github.com/seed46cd37a8/atoll/internal/secretref"
	"github.com/seed46cd37a8/atoll/provider/plugin"
	"github.com/seed46cd37a8/atoll/server/api/client"
)

// The ranks of the openers.
const (
	serverRank  = 10
	programRank = 20
)

func init() {
	atoll.RegisterOpener("server", serverRank, openServer)
	atoll.RegisterOpener("program", programRank, openProgram)
}

// retryTimeout bounds the retries of a call after a server or a program has died.
const retryTimeout = 20 * time.Second

// openServer connects to the server of ATOLL_URL, or else to the one on the socket of the state directory.
func openServer(ctx context.Context) (atoll.Provider, error) {
	if url := os.Getenv("ATOLL_URL"); url != "" {
		home, _ := os.UserHomeDir() // only for a path with ~
		var token secretref.Ref
		if err := token.Parse(os.Getenv("ATOLL_TOKEN"), true, home); err != nil {
			return nil, atoll.Errorf("open", "ATOLL_TOKEN", atoll.ErrInvalid, "%w", err)
		}
		secret, err := token.Reveal()
		if err != nil {
			return nil, atoll.Errorf("open", "ATOLL_TOKEN", atoll.ErrInvalid, "%w", err)
		}
		return client.New(ctx, client.Options{URL: url, Token: secret, Patience: retryTimeout})
	}
	dir, err := stateDir()
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "atoll.sock")
	c, err := client.New(ctx, client.Options{URL: "unix://" + socket})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, atoll.Errorf("open", "", atoll.ErrUnsupported, "no server runs for %s: start one with atoll serve, or set ATOLL_URL", dir)
	}
	if err != nil { // not a nil *Client in a Provider
		return nil, err
	}
	return c, nil
}

// openProgram starts the program atoll, which serves the providers of its configuration until the provider is
// closed or this program ends.
func openProgram(ctx context.Context) (atoll.Provider, error) {
	path, err := exec.LookPath(cmp.Or(os.Getenv("ATOLL_PROGRAM"), "atoll"))
	if err != nil {
		return nil, atoll.Errorf("open", "", atoll.ErrUnsupported, "%w: install atoll, or set ATOLL_PROGRAM to its path", err)
	}
	dir, err := stateDir()
	if err != nil {
		return nil, err
	}
	program := plugin.NewProgram(plugin.Options{Name: "atoll", Path: path, StateDir: dir})
	c, err := client.New(ctx, client.Options{Dial: program.Dial, Patience: retryTimeout})
	if err != nil {
		return nil, errors.Join(err, program.Close())
	}
	return helper{atoll.ProviderLayer{Provider: c}, program}, nil
}

// A helper is the provider of a program that this one has started.
type helper struct {
	atoll.ProviderLayer
	program *plugin.Program
}

// Close implements atoll.Provider. It ends the program.
func (h helper) Close() error { return errors.Join(h.ProviderLayer.Close(), h.program.Close()) }

// stateDir returns the directory of the sandboxes, as the command line has it.
func stateDir() (string, error) {
	if dir := os.Getenv("ATOLL_STATE_DIR"); dir != "" {
		home, _ := os.UserHomeDir() // only for a path with ~
		return secretref.ExpandHome(dir, home), nil
	}
	state, err := fsutil.StateHome()
	if err != nil {
		return "", atoll.Errorf("open", "", atoll.ErrInvalid, "%w: set ATOLL_STATE_DIR", err)
	}
	return filepath.Join(state, "atoll"), nil
}
