package auto

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/server/api"
)

// Without a server and a program, the error says what to do about each.
func TestNothingToOpen(t *testing.T) {
	t.Setenv("ATOLL_URL", "")
	t.Setenv("ATOLL_STATE_DIR", t.TempDir())
	t.Setenv("ATOLL_PROGRAM", filepath.Join(t.TempDir(), "none"))
	_, err := atoll.Open(t.Context())
	if atoll.KindOf(err) != atoll.ErrUnsupported || !strings.Contains(err.Error(), "start one with atoll serve") || !strings.Contains(err.Error(), "set ATOLL_PROGRAM") {
		t.Errorf("Open: %v", err)
	}
}

// Open uses the server on the socket of the state directory.
func TestOpenServer(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("ATOLL_URL", "")
	t.Setenv("ATOLL_STATE_DIR", dir)
	p, err := mock.New(mock.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := api.NewHandler(p, api.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := api.Listen(t.Context(), "unix://"+filepath.Join(dir, "atoll.sock"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- api.Serve(ctx, h, l) }()
	defer func() {
		stop()
		if err := errors.Join(<-served, p.Close()); err != nil {
			t.Error(err)
		}
	}()
	opened, err := atoll.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	sb, err := opened.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := atoll.Output(t.Context(), sb, &atoll.Command{Args: []string{"echo", "served"}}); err != nil || string(out) != "served\n" {
		t.Errorf("echo: %q, %v", out, err)
	}
}

// A server that the user names is used or fails: nothing stands in for it.
func TestNamedServer(t *testing.T) {
	t.Setenv("ATOLL_STATE_DIR", t.TempDir())
	t.Setenv("ATOLL_URL", "http://127.0.0.1:1")
	if _, err := atoll.Open(t.Context()); atoll.KindOf(err) == atoll.ErrUnsupported || err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("Open: %v", err)
	}
	t.Setenv("ATOLL_TOKEN", "file:relative")
	if _, err := atoll.Open(t.Context()); atoll.KindOf(err) != atoll.ErrInvalid {
		t.Errorf("with a bad token: %v", err)
	}
}
