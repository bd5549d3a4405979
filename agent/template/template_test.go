package template

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

func TestValidate(t *testing.T) {
	run := []string{"a", "{prompt}"}
	for _, tt := range []struct {
		t    Template
		want string // in the error; "" if valid
	}{
		{Template{Name: "t"}, ""},
		{Template{}, `name ""`},
		{Template{Name: "t", Provider: "a b"}, `provider "a b"`},
		{Template{Name: "t", Spec: atoll.Spec{ID: "a"}}, "spec.id: leave it out: each sandbox has its own"},
		{Template{Name: "t", Spec: atoll.Spec{Name: "a"}}, "spec.name"},
		{Template{Name: "t", Spec: atoll.Spec{Provider: "a"}}, "spec.provider: leave it out: it belongs beside spec"},
		{Template{Name: "t", Spec: atoll.Spec{NoStart: true}}, "spec.no_start"},
		{Template{Name: "t", Spec: atoll.Spec{AutoRemove: true}}, "spec.auto_remove"},
		{Template{Name: "t", Spec: atoll.Spec{User: "a b"}}, `spec: create: user "a b"`},
		{Template{Name: "t", Dir: "/srv"}, ""},
		{Template{Name: "t", Dir: "srv"}, `dir "srv"`},
		{Template{Name: "t", Dir: "/srv/.."}, `dir "/srv/.."`},
		{Template{Name: "t", Dir: "/a\x00"}, `dir "/a`},
		{Template{Name: "t", Policy: PolicySynced}, ""},
		{Template{Name: "t", Policy: "keep"}, `policy "keep"`},
		{Template{Name: "t", KeepDays: -1}, "must be positive"},
		{Template{Name: "t", KeepVersions: -1}, "must be positive"},

		{Template{Name: "t", Volume: "shared"}, ""},
		{Template{Name: "t", Volume: "{account}-{agent}"}, ""},
		{Template{Name: "t", Volume: "a b"}, "volume: \"a b\": volumes are named by"},
		{Template{Name: "t", Volume: "{user}"}, "volume: unknown word {user}: use {account}, {agent}, {conversation}, {sandbox}"},
		{Template{Name: "t", Volume: "{account"}, "write words in braces"},
		{Template{Name: "t", Volume: "{agent}"}, "volume: {agent} needs {account} too"},
		{Template{Name: "t", Volume: "v", Spec: atoll.Spec{Mounts: []atoll.Mount{{Type: atoll.MountTmpfs, Target: "/work/"}}}}, "volume: /work has another mount"},

		{Template{Name: "t", KeyPrefix: "/docs/{account}/"}, ""},
		{Template{Name: "t", KeyPrefix: "shared"}, ""},
		{Template{Name: "t", KeyPrefix: "a.b_c=d-{account}/x{agent}y"}, ""},
		{Template{Name: "t", KeyPrefix: "a//b"}, "without empty parts"},
		{Template{Name: "t", KeyPrefix: "/"}, "without empty parts"},
		{Template{Name: "t", KeyPrefix: "../{account}"}, "without empty parts"},
		{Template{Name: "t", KeyPrefix: "./{account}"}, "without empty parts"},
		{Template{Name: "t", KeyPrefix: "docs/{account}-{agent}"}, "put a / into {account}-{agent}"},
		{Template{Name: "t", KeyPrefix: "docs/{conversation}"}, "{conversation} needs {account} too"},
		{Template{Name: "t", KeyPrefix: "docs/{x}"}, "unknown word {x}"},
		{Template{Name: "t", KeyPrefix: "docs/{{account}}"}, "write words in braces"},
		{Template{Name: "t", KeyPrefix: "docs?{account}"}, "use letters, digits"},
		{Template{Name: "t", Bucket: "b-{account}", KeyPrefix: "{conversation}"}, ""},
		{Template{Name: "t", Bucket: "b-{agent}"}, ""}, // the default prefix contains the account
		{Template{Name: "t", Bucket: "{account}{agent}"}, "put a / into {account}{agent}"},
		{Template{Name: "t", Bucket: "b-{x}"}, "bucket: unknown word {x}"},

		{Template{Name: "t", Agent: Agent{Command: run}}, ""},
		{Template{Name: "t", Agent: Agent{Command: []string{"a", "{continue}", "{prompt}"}, Continue: []string{"-c"}, ContinueIf: ".a/b"}}, ""},
		{Template{Name: "t", Agent: Agent{TTY: true}}, "command is missing"},
		{Template{Name: "t", Agent: Agent{Command: []string{"a"}, Stdin: true}}, ""},
		{Template{Name: "t", Agent: Agent{Command: []string{"{prompt}"}}}, "must begin with a program"},
		{Template{Name: "t", Agent: Agent{Command: []string{"{continue}", "{prompt}"}, Continue: []string{"c"}}}, "must begin with a program"},
		{Template{Name: "t", Agent: Agent{Command: run, Stdin: true}}, "{prompt} is not allowed with stdin"},
		{Template{Name: "t", Agent: Agent{Command: []string{"a"}}}, "use {prompt} once"},
		{Template{Name: "t", Agent: Agent{Command: []string{"a", "{prompt}", "{prompt}"}}}, "use {prompt} once"},
		{Template{Name: "t", Agent: Agent{Command: []string{"a", "-p={prompt}", "{prompt}"}}}, "must be arguments of their own"},
		{Template{Name: "t", Agent: Agent{Command: []string{"a", "{continue}", "{continue}", "{prompt}"}, Continue: []string{"c"}}}, "occurs twice"},
		{Template{Name: "t", Agent: Agent{Command: run, Continue: []string{"c"}}}, "put the argument {continue}"},
		{Template{Name: "t", Agent: Agent{Command: run, ContinueIf: "a"}}, "put the argument {continue}"},
		{Template{Name: "t", Agent: Agent{Command: []string{"a", "{continue}", "{prompt}"}}}, "needs continue"},
		{Template{Name: "t", Agent: Agent{Command: []string{"a", "{continue}", "{prompt}"}, Continue: []string{"{prompt}"}}}, "belong into command"},
		{Template{Name: "t", Agent: Agent{Command: []string{"a", "{continue}", "{prompt}"}, Continue: []string{"c"}, ContinueIf: "../a"}}, `continue_if "../a"`},
		{Template{Name: "t", Agent: Agent{Command: []string{"a", "{continue}", "{prompt}"}, Continue: []string{"c"}, ContinueIf: "/a"}}, `continue_if "/a"`},
		{Template{Name: "t", Agent: Agent{Command: []string{"a\x00", "{prompt}"}}}, "NUL"},
		{Template{Name: "t", Agent: Agent{Command: run, Format: "json"}}, `format "json"`},
		{Template{Name: "t", Agent: Agent{Command: []string{"a"}, TTY: true, Stdin: true}}, "tty and stdin"},
		{Template{Name: "t", Agent: Agent{Command: run, User: "a b"}}, `user "a b"`},
		{Template{Name: "t", Agent: Agent{Command: run, Env: []string{"A"}}}, "environment: entry 1"},
		{Template{Name: "t", Agent: Agent{Command: run, Timeout: -1}}, "timeout never"},
		{Template{Name: "t", Agent: Agent{Command: run, Secrets: map[string]Secret{"A-B": {ref: "env:A"}}}}, `"A-B" cannot name a variable`},
		{Template{Name: "t", Agent: Agent{Command: run, Secrets: map[string]Secret{"A": {}}}}, "A is empty"},
		{Template{Name: "t", Agent: Agent{Command: run, Env: []string{"A=b"}, Secrets: map[string]Secret{"A": {ref: "env:A"}}}}, "A is in env too"},
		{Template{Name: "t", Agent: Agent{Command: run, Setup: [][]string{{}}}}, "setup: exec: no command"},
		{Template{Name: "t", Agent: Agent{Command: run, Setup: [][]string{{"chown", "{user}:x"}}}}, "{user} stands for user"},
	} {
		err := tt.t.Validate()
		if (err == nil) != (tt.want == "") || err != nil && (!errors.Is(err, atoll.ErrInvalid) || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%+v: %v, want %q", tt.t, err, tt.want)
		}
	}
}

var testNames = Names{Account: "acme", Agent: "coder", Conversation: "talk", Sandbox: "box"}

func TestPlace(t *testing.T) {
	long := strings.Repeat("x", 65)
	for _, tt := range []struct {
		bucket, prefix, store string
		names                 Names
		want, bad             string
	}{
		{names: testNames},
		{store: "s3://b/base/", names: testNames, want: "s3://b/base/docs/acme/talk"},
		{store: "b", prefix: "/shared/", want: "b/shared"},
		{bucket: "mine", store: "s3://b", names: testNames, want: "mine/docs/acme/talk"},
		{bucket: "s3://b-{account}", prefix: "{agent}/x{sandbox}", names: testNames, want: "s3://b-acme/coder/xbox"},
		{bucket: "file:///srv", names: testNames, want: "file:///srv/docs/acme/talk"},
		{store: "b", names: Names{Account: long, Conversation: long}, want: "b/docs/" + long + "/" + long},
		{store: "b", names: Names{Account: "acme"}, bad: "needs a value for {conversation}"},
		{store: "b", names: Names{Account: "acme", Conversation: ".."}, bad: `".." as {conversation}: use a letter`},
		{store: "b", names: Names{Account: "acme", Conversation: "a/../../b"}, bad: `"a/../../b" as {conversation}`},
		{store: "b", names: Names{Account: "acme", Conversation: long + "x"}, bad: "as {conversation}"},
		{store: "b", names: Names{Account: "a%2f", Conversation: "talk"}, bad: `"a%2f" as {account}`},
		{store: "b", names: Names{Account: "{agent}", Conversation: "talk"}, bad: `"{agent}" as {account}`},
		{bucket: "s3://{account}", names: Names{Account: "a@b", Conversation: "talk"}, bad: `bucket: "a@b" as {account}`},
		{names: Names{Account: "acme", Conversation: "?"}, bad: `"?" as {conversation}`}, // even without a store
	} {
		tpl := Template{Name: "t", Bucket: tt.bucket, KeyPrefix: tt.prefix}
		got, err := tpl.Place(tt.names, tt.store)
		if got != tt.want || (err == nil) != (tt.bad == "") || err != nil && (!errors.Is(err, atoll.ErrInvalid) || !strings.Contains(err.Error(), tt.bad)) {
			t.Errorf("%+v: %q, %v", tt, got, err)
		}
	}
}

func TestSpecFor(t *testing.T) {
	tpl := Template{Name: "t", Provider: "docker", Spec: atoll.Spec{Image: "debian", Workdir: "/src", Env: []string{"A=b"}}}
	got, err := tpl.SpecFor(testNames)
	if want := (&atoll.Spec{Provider: "docker", Image: "debian", Workdir: "/src", Env: []string{"A=b"}}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	got.Env[0] = "changed"
	tpl.Volume = "vol-{account}"
	got, err = tpl.SpecFor(testNames)
	want := &atoll.Spec{Provider: "docker", Image: "debian", Workdir: "/src", Env: []string{"A=b"}, Mounts: []atoll.Mount{{Type: atoll.MountVolume, Source: "vol-acme", Target: "/src"}}}
	if err != nil || !reflect.DeepEqual(got, want) || len(tpl.Spec.Mounts) != 0 || got.Validate() != nil {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if _, err := tpl.SpecFor(Names{Account: "../x"}); !errors.Is(err, atoll.ErrInvalid) {
		t.Errorf("of a hostile name: %v, want invalid", err)
	}
}

// Different names never give the same volume.
func TestVolumeNames(t *testing.T) {
	long := strings.Repeat("x", 65)
	seen := map[string]Names{}
	for _, n := range []Names{
		{Account: "a", Agent: "b-c"}, {Account: "a-b", Agent: "c"}, {Account: "a-b-c", Agent: "c"}, {Account: long, Agent: "a"}, {Account: long, Agent: "b"},
		{Account: "a", Agent: long}, {Account: long, Agent: long},
	} {
		name, err := volumeName("v-{account}-{agent}", n)
		if was, twice := seen[name]; twice || err != nil || !atoll.ValidName(name) {
			t.Errorf("%v: %q, %v; also that of %v", n, name, err, was)
		}
		seen[name] = n
	}
	for account, want := range map[string]string{"acme": "v-acme", long: "v-" + strings.Repeat("x", 38) + "-"} {
		if name, err := volumeName("v-{account}", Names{Account: account}); err != nil || !strings.HasPrefix(name, want) || !atoll.ValidName(name) {
			t.Errorf("%s: %q, %v, want %q", account, name, err, want)
		}
	}
}

func TestPolicyFor(t *testing.T) {
	for _, tt := range []struct {
		policy Policy
		stored bool
		want   Policy
	}{
		{"", true, PolicySynced},
		{"", false, PolicyPersistent},
		{PolicyEphemeral, true, PolicyEphemeral},
		{PolicyEphemeral, false, PolicyEphemeral},
		{PolicyPersistent, true, PolicyPersistent},
		{PolicySynced, true, PolicySynced},
		{PolicySynced, false, ""},
	} {
		got, err := (&Template{Name: "t", Policy: tt.policy}).PolicyFor(tt.stored)
		if got != tt.want || (err != nil) != (tt.want == "") || err != nil && !errors.Is(err, atoll.ErrInvalid) {
			t.Errorf("%q, stored %t: %q, %v, want %q", tt.policy, tt.stored, got, err, tt.want)
		}
	}
}

func TestWorkDir(t *testing.T) {
	for _, tt := range []struct{ dir, workdir, want string }{
		{"", "", "/work"}, {"", "/src", "/src"}, {"/srv/", "/src", "/srv"}, {"/work/a", "", "/work/a"},
	} {
		if got := (&Template{Dir: tt.dir, Spec: atoll.Spec{Workdir: tt.workdir}}).WorkDir(); got != tt.want {
			t.Errorf("dir %q, workdir %q: %q, want %q", tt.dir, tt.workdir, got, tt.want)
		}
	}
}
