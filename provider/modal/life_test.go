//go:build linux

package modal_test

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modal-labs/libmodal/modal-go"
	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/provider/internal/remote"
	"github.com/seed46cd37a8/atoll/provider/modal"
)

// A sandbox that Modal has ended says so. Start creates another one from the same spec with the
// same files.
func TestModalEndsALife(t *testing.T) {
	p := provider(t, func(o *modal.Options) { modal.Long(o, time.Hour) })
	for _, tt := range []struct {
		what  string
		end   func(id string) error
		state atoll.State
		says  string
	}{
		{"it is preempted", theLab.server.Preempt, atoll.StateFailed, "preempted"},
		{"somebody terminates it", func(id string) error {
			return theLab.server.Kill(id, pb.GenericResult_GENERIC_STATUS_TERMINATED, "")
		}, atoll.StateFailed, "somebody else has terminated it: start it again"},
		{"its time is over", func(id string) error {
			return theLab.server.Kill(id, pb.GenericResult_GENERIC_STATUS_TIMEOUT, "Sandbox has reached its timeout")
		}, atoll.StateStopped, "it reached Modal's limit of 24 hours: start it again"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			sb := created(t, p, atoll.Spec{Name: "web", Env: []string{"ONE=1"}, Labels: map[string]string{"a": "b"}})
			says(t, sb, "echo work > /work/file")
			before, err := sb.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := tt.end(instanceOf(t, p, sb.ID())); err != nil {
				t.Fatal(err)
			}
			var st atoll.Status
			becomes(t, string(tt.state), 10*time.Second, func() bool {
				if st, err = sb.Status(t.Context()); err != nil {
					t.Fatal(err)
				}
				return st.State == tt.state
			})
			if !strings.Contains(st.Reason, tt.says) || st.Ready {
				t.Errorf("it is ready: %v; the reason is %q, want %q in it", st.Ready, st.Reason, tt.says)
			}
			if _, err := sb.Exec(t.Context(), shell("true")); atoll.KindOf(err) != atoll.ErrStopped {
				t.Errorf("Exec: %v, want it stopped", err)
			}
			if err := sb.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := says(t, sb, "cat /work/file; echo $ONE"); got != "work\n1\n" {
				t.Errorf("it has %q", got)
			}
			after, err := sb.Status(t.Context())
			if err != nil || after.ID != before.ID || after.Spec.Name != before.Spec.Name || after.Spec.Labels["a"] != "b" || after.Image != before.Image || after.Reason != "" {
				t.Errorf("it is %+v, %v; and was %+v", after, err, before)
			}
			if there, err := atoll.Resolve(t.Context(), p, "", "web"); err != nil || there.ID() != sb.ID() {
				t.Errorf("Resolve: %v, %v", there, err)
			}
			if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
				t.Error(err)
			}
		})
	}
}

// Modal ends an instance at its limit.
func TestLimitOfALife(t *testing.T) {
	p := provider(t, func(o *modal.Options) { modal.Long(o, 15*time.Second) })
	sb := created(t, p, atoll.Spec{})
	becomes(t, "stopped", time.Minute, func() bool {
		st, err := sb.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return st.State == atoll.StateStopped && strings.Contains(st.Reason, "24 hours")
	})
}

// A long creation renews its lease, and succeeds in the end.
func TestLongCreation(t *testing.T) {
	making := min(max(5*time.Second, testenv.Scale(3*time.Second)), remote.CleanupTimeout/4) // the provider waits for CleanupTimeout
	p := provider(t, func(o *modal.Options) { modal.Making(o, making) })
	other := reopen(t, p)
	defer other.Close()
	if _, err := other.List(t.Context(), atoll.Filter{}); err != nil { // it sweeps from now on
		t.Fatal(err)
	}
	theLab.server.Intercept(func(method string) error {
		if method == "SandboxCreate" {
			time.Sleep(3 * making)
		}
		return nil
	})
	defer theLab.server.Intercept(nil)
	sb := created(t, p, atoll.Spec{Name: "long"})
	for what, p := range map[string]atoll.Provider{"its maker": p, "another program": other, "one that comes new": reopen(t, p)} {
		there, err := atoll.Resolve(t.Context(), p, "", "long")
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if st, err := there.Status(t.Context()); err != nil || st.State != atoll.StateRunning || st.ID != sb.ID() {
			t.Errorf("%s sees %+v, %v", what, st, err)
		}
		if what == "one that comes new" {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// Only one sandbox gets a name, however many want it at once, from however many programs.
func TestNameIsClaimedByMany(t *testing.T) {
	const programs = 6
	p := provider(t)
	all := []atoll.Provider{p}
	for range programs - 1 {
		again := reopen(t, p)
		defer again.Close()
		all = append(all, again)
	}
	for range 3 {
		var mu sync.Mutex
		var won []string
		var work sync.WaitGroup
		for _, p := range all {
			work.Go(func() {
				sb, err := p.Create(t.Context(), &atoll.Spec{Name: "web", NoStart: true})
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					won = append(won, sb.ID())
				} else if atoll.KindOf(err) != atoll.ErrAlreadyExists {
					t.Errorf("Create: %v", err)
				}
			})
		}
		work.Wait()
		if len(won) != 1 {
			t.Fatalf("sandbox %q got the name", won)
		}
		for _, p := range all {
			if there, err := atoll.Resolve(t.Context(), p, "", "web"); err != nil || there.ID() != won[0] {
				t.Errorf("Resolve: %v, %v; want %s", there, err, won[0])
			}
		}
		last := all[len(all)-1]
		sb, err := last.Get(t.Context(), won[0])
		if err != nil {
			t.Fatal(err)
		}
		if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
			t.Fatal(err)
		}
		nothing(t, p)
	}
}

// breakEnv makes the maker stop before a step until it is killed.
const breakEnv = "ATOLL_MODAL_TEST_BREAK"

// breaker creates a sandbox up to a step, or starts it if it exists.
func breaker(args []string) error {
	opts := modal.Options{ServerURL: args[0], TokenID: "ak-test", TokenSecret: "as-test", Prefix: args[1], Image: args[2], Guest: testenv.Guest}
	modal.Making(&opts, brokenFor)
	modal.OnStep(&opts, func(name string) error {
		if name == os.Getenv(breakEnv) {
			fmt.Println(name)
			select {}
		}
		return nil
	})
	p, err := modal.New(opts)
	if err != nil {
		return err
	}
	if sb, err := p.Get(context.Background(), args[3]); err == nil {
		return sb.Start(context.Background())
	}
	_, err = p.Create(context.Background(), &atoll.Spec{ID: args[3], Name: args[3], Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: args[3], Target: "/data"}}})
	return err
}

// brokenFor is the lease of a creation whose program was killed.
var brokenFor = max(3*time.Second, testenv.Scale(2*time.Second))

// sweptWithin bounds the time for a sweep to find what was left: Modal may create an instance
// after its creator was killed and a sweep has looked, and the next sweep is a minute later.
var sweptWithin = time.Minute + 10*brokenFor

// broken creates or starts a sandbox in a program that is killed at a step, or at a call of the
// service.
func broken(t *testing.T, p atoll.Provider, id, step string) {
	t.Helper()
	opts := optionsOf(p)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	reached, killed := make(chan struct{}), make(chan struct{})
	var once sync.Once
	theLab.server.Intercept(func(method string) error {
		if method == step {
			once.Do(func() { close(reached) })
			<-killed
		}
		return nil
	})
	defer theLab.server.Intercept(nil)
	defer close(killed)
	cmd := exec.Command(exe, opts.ServerURL, opts.Prefix, opts.Image, id)
	cmd.Env = append(os.Environ(), makerEnv+"=1", breakEnv+"="+step)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if strings.HasPrefix(step, "Sandbox") {
		<-reached
	} else if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != step+"\n" {
		t.Errorf("it says %q, %v", line, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
}

// At whichever step of a creation a program is killed, the sweep of another one removes what is
// left.
func TestMakerIsKilled(t *testing.T) {
	p := provider(t, func(o *modal.Options) { modal.Making(o, brokenFor) })
	var ids []string
	for _, step := range []string{"record", "name", "volumes", "start", "made", "SandboxTagsSet"} {
		id := atoll.NewID()
		ids = append(ids, id)
		broken(t, p, id, step)
	}
	if len(lives(t, p)) == 0 {
		t.Error("no life was left to be swept")
	}
	if _, err := p.List(t.Context(), atoll.Filter{}); err != nil { // it sweeps from now on
		t.Fatal(err)
	}
	becomes(t, "nothing is left of all", sweptWithin, func() bool {
		all, err := p.List(t.Context(), atoll.Filter{})
		if err != nil {
			t.Fatal(err)
		}
		return len(all) == 0 && len(lives(t, p)) == 0 && len(mustVolumes(t, p)) == 0
	})
	for _, id := range ids {
		created(t, p, atoll.Spec{ID: id, Name: id, NoStart: true})
	}
}

// Instances that belong to no sandbox are ended: Modal may finish late what no program waits
// for.
func TestStraysAreEnded(t *testing.T) {
	p := provider(t)
	sb := created(t, p, atoll.Spec{})
	client := client(t, p)
	box, err := client.Sandboxes.FromID(t.Context(), instanceOf(t, p, sb.ID()))
	if err != nil {
		t.Fatal(err)
	}
	tags, err := box.GetTags(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	app, err := client.Apps.FromName(t.Context(), optionsOf(p).Prefix, nil)
	if err != nil {
		t.Fatal(err)
	}
	image := client.Images.FromRegistry(optionsOf(p).Image, nil)
	stray := func(name string, change func(map[string]string)) *sdk.Sandbox {
		t.Helper()
		s, err := client.Sandboxes.Create(t.Context(), app, image, &sdk.SandboxCreateParams{Name: optionsOf(p).Prefix + "-" + name})
		if err != nil {
			t.Fatal(err)
		}
		if change == nil { // no program was left to set tags
			return s
		}
		all := maps.Clone(tags)
		change(all)
		if err := s.SetTags(t.Context(), all); err != nil {
			t.Fatal(err)
		}
		return s
	}
	stray("stray", func(tags map[string]string) { tags["atoll-session"] = atoll.NewID() })
	others := stray("others", func(tags map[string]string) { tags["atoll"] = "another"; tags["atoll-session"] = atoll.NewID() })
	defer others.Terminate(t.Context())
	users := stray("web", nil)
	defer users.Terminate(t.Context())
	late := atoll.NewID()
	stray(late, nil)
	created(t, p, atoll.Spec{}) // which makes it sweep
	for _, name := range []string{"stray", late} {
		becomes(t, "the stray "+name+" has gone", 30*time.Second, func() bool { return !slices.Contains(lives(t, p), optionsOf(p).Prefix+"-"+name) })
	}
	for _, name := range []string{"others", "web"} {
		if !slices.Contains(lives(t, p), optionsOf(p).Prefix+"-"+name) {
			t.Errorf("what is another's was ended: %s", name)
		}
	}
	says(t, sb, "true")
}

// client returns an SDK client of the same account.
func client(t *testing.T, p atoll.Provider) *sdk.Client {
	t.Helper()
	t.Setenv("MODAL_SERVER_URL", optionsOf(p).ServerURL)
	c, err := sdk.NewClientWithOptions(&sdk.ClientParams{TokenID: "ak-test", TokenSecret: "as-test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// Every image has the lines of a Dockerfile, and every process has the variables of Secrets.
func TestCommandsAndSecrets(t *testing.T) {
	p := provider(t, func(o *modal.Options) {
		o.Commands = []string{"ENV BUILT=yes", "RUN echo made > /made"}
		o.Secrets = []string{o.Prefix + "-keys"}
	})
	if err := p.MakeSecret(t.Context(), optionsOf(p).Secrets[0], map[string]string{"KEY": "of the secret"}); err != nil {
		t.Fatal(err)
	}
	sb := created(t, p, atoll.Spec{Cmd: []string{"/bin/busybox", "sh", "-c", "echo main $KEY; sleep 1000"}})
	if got := says(t, sb, "echo $BUILT $KEY; cat /made"); got != "yes of the secret\nmade\n" {
		t.Errorf("it says %q", got)
	}
	if got := says(t, sb, "tr '\\0' '\\n' </proc/self/environ | grep -c ATOLL_GUEST_CONFIG || true"); got != "0\n" {
		t.Errorf("processes have the guest's configuration in their environment: %q", got)
	}
}
