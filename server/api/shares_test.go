package api_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/server/api"
	"github.com/seed46cd37a8/atoll/server/api/client"
	"github.com/seed46cd37a8/atoll/server/auth"
)

// An account of projects has a share of the file watches, which it gets back when a watch ends. An admin has them all.
func TestFileWatchesPerAccount(t *testing.T) {
	const most = 32
	p := openLocal(t)
	defer p.Close()
	made, err := p.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := api.NewHandler(p, api.Options{Tokens: map[string]auth.Account{
		"project": {Name: "p", Role: auth.RoleProject, Projects: []string{"default"}}, "admin": {},
	}})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	defer server.Close()
	defer h.Close()
	files := map[string]atoll.FS{}
	for _, token := range []string{"project", "admin"} {
		c, err := client.New(t.Context(), client.Options{URL: server.URL, Token: token})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		sb, err := c.Get(t.Context(), made.ID())
		if err != nil {
			t.Fatal(err)
		}
		files[token] = atoll.Files(sb)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(30*time.Second))
	defer cancel()
	watchErr := func(token string) (err error) {
		for _, err = range files[token].Watch(ctx, ".", false) {
			break
		}
		return err
	}
	watching, stop := context.WithCancel(ctx)
	var synced, ended sync.WaitGroup
	for range most {
		synced.Add(1)
		ended.Go(func() {
			first := sync.OnceFunc(synced.Done)
			defer first()
			for _, err := range files["project"].Watch(watching, ".", false) {
				if err != nil {
					if !errors.Is(err, context.Canceled) {
						t.Errorf("watch: %v", err)
					}
					return
				}
				first()
			}
		})
	}
	synced.Wait()
	if err := watchErr("project"); !errors.Is(err, atoll.ErrExhausted) || !strings.Contains(err.Error(), "32 file watches") {
		t.Errorf("one watch too many: %v", err)
	}
	if err := watchErr("admin"); err != nil {
		t.Errorf("an admin: %v", err)
	}
	stop()
	ended.Wait()
	for err = watchErr("project"); errors.Is(err, atoll.ErrExhausted) && ctx.Err() == nil; err = watchErr("project") { // until the server notices
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		t.Errorf("after the end of the others: %v", err)
	}
}
