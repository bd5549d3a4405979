package filesync_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll/storage/filesync"
)

// Files that another program writes during a pull aren't lost: they are conflicts, like
// files written before.
func TestEditsDuringPull(t *testing.T) {
	for _, policy := range []filesync.Policy{filesync.KeepLocal, filesync.KeepRemote} {
		for _, step := range []string{"judged", "removed"} {
			t.Run(fmt.Sprint(policy, " ", step), func(t *testing.T) {
				b := openBucket(t)
				r := newRemote(t, b, filesync.Options{})
				p, q := newPlace(t), newPlace(t)
				for _, name := range []string{"dir/both", "dir/there", "gone", "sub/x"} {
					p.writeText(name, "1")
				}
				p.push(r)
				q.pull(r, filesync.PullOptions{})
				p.writeText("dir/both", "22")
				p.writeText("dir/there", "22")
				p.writeText("dir/new", "22")
				p.writeText("fresh/new", "22")
				p.removeFile("gone")
				p.push(r)
				slow := newRemote(t, b, filesync.Options{}.WithStep(func(name string) {
					if name != step {
						return
					}
					q.writeText("dir/both", "mine")
					q.writeText("dir/new", "mine")
					if step == "judged" {
						q.writeText("gone", "mine")
					}
				}))
				st := q.pull(slow, filesync.PullOptions{Conflicts: policy})
				want := map[string]string{"dir/both": "mine", "dir/new": "mine", "dir/there": "22", "fresh/new": "22", "sub/x": "1"}
				conflicts := []string{"dir/both", "dir/new"}
				if policy == filesync.KeepRemote {
					want["dir/both"], want["dir/new"] = "22", "22"
				}
				if step == "judged" {
					conflicts = append(conflicts, "gone")
					if policy == filesync.KeepLocal {
						want["gone"] = "mine"
					}
				}
				for name, text := range want {
					if got := q.readText(name); got != text {
						t.Errorf("%s is %q, want %q", name, got, text)
					}
				}
				var told []string
				for _, c := range st.Conflicts {
					told = append(told, c.Path)
				}
				slices.Sort(told)
				if !slices.Equal(told, conflicts) || st.Failed > 0 {
					t.Errorf("Pull: %+v, want conflicts about %s", st, strings.Join(conflicts, ", "))
				}
				if policy == filesync.KeepRemote {
					return
				}
				q.push(r)
				c := newPlace(t)
				c.pull(r, filesync.PullOptions{})
				checkEqual(t, q, c)
			})
		}
	}
}
