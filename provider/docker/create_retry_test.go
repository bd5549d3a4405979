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

// A container that is not ours has its name for good; one that is about to be is waited for
// as long as somebody wants to know.
func TestNameTaken(t *testing.T) {
	const foreign = `{"Id": "1", "Config": {"Labels": {"atoll.session": "another"}}, "State": {"Status": "running"}}`
	for name, tt := range map[string]struct {
		there string // what has the name, "" if it cannot be seen yet
		stop  int    // after so many tries nobody waits any more
		want  int    // tries
	}{
		"foreign": {foreign, 1000, 1},
		"late":    {"", 3, 3},
	} {
		t.Run(name, func(t *testing.T) {
			caller, stop := context.WithCancel(t.Context())
			defer stop()
			var tries atomic.Int32
			p := against(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
