package docker

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
)

// If a container has the name of a new sandbox, creation fails at once if another server owns
// the container. If nobody can see the container yet, creation retries until the caller gives
// up.
func TestCreateRetry(t *testing.T) {
	const foreign = `{"Id": "1", "Config": {"Labels": {"atoll.session": "another"}}, "State": {"Status": "running"}}`
	for name, tt := range map[string]struct {
		there string // the container with the name, as JSON; "" if it is not visible
		stop  int    // the caller gives up after so many requests
		want  int    // number of requests
	}{
		"foreign": {foreign, 1000, 1},
		"late":    {"", 3, 3},
	} {
		t.Run(name, func(t *testing.T) {
			caller, stop := context.WithCancel(t.Context())
			defer stop()
			var tries atomic.Int32
			p := openFake(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Api-Version", "1.45")
				w.Header().Set("Content-Type", "application/json")
				switch {
				case strings.HasSuffix(r.URL.Path, "/containers/create"):
					if int(tries.Add(1)) == tt.stop {
						stop()
					}
					w.WriteHeader(http.StatusConflict)
					fmt.Fprintln(w, `{"message": "the name is in use"}`)
				case strings.HasSuffix(r.URL.Path, "/json") && tt.there == "":
					w.WriteHeader(http.StatusNotFound)
					fmt.Fprintln(w, `{"message": "no such container"}`)
				case strings.HasSuffix(r.URL.Path, "/json"):
					fmt.Fprintln(w, tt.there)
				default:
					fmt.Fprintln(w, `{}`)
				}
			}))
			defer p.Close()
			c := &creation{p: p, spec: &atoll.Spec{ID: atoll.NewID()}}
			if _, err := c.createRetrying(t.Context(), caller, client.ContainerCreateOptions{Name: "n", Image: "x"}); !nameTaken(err) || int(tries.Load()) != tt.want {
				t.Errorf("after %d tries: %v, want %d", tries.Load(), err, tt.want)
			}
		})
	}
}
