package atoll

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSpecValidate(t *testing.T) {
	long := strings.Repeat("n", 65)
	for _, tt := range []struct {
		name string
		spec Spec
		want string // in the error; "" for none
	}{
		{"zero", Spec{}, ""},
		{"full", Spec{
			ID: "6F9619FF-8B86-4011-B42D-00CF4FC964FF", Name: "web_1-a", Project: long, Labels: map[string]string{"k": ""},
			Cmd: []string{"sh", ""}, Env: []string{"A=", "B=x=y"}, Workdir: "/app", User: "1000:100",
			Mounts:    []Mount{{Type: MountBind, Source: "/src", Target: "/a"}, {Type: MountTmpfs, Target: "/b", Size: 1}, {Type: MountVolume, Source: "v", Target: "/c/"}},
			Resources: Resources{Memory: Unlimited, CPUs: 0.5, Processes: Unlimited, Disk: 1},
			Network:   Network{Mode: NetworkEgress, Allow: []string{"example.com"}}, Ports: []Port{{Port: 65535}}, TTL: 1, AutoRemove: true,
		}, ""},
		{"id", Spec{ID: "xyz"}, "UUID"},
		{"provider", Spec{Provider: "a provider"}, `provider "a provider": use a letter`},
		{"short id", Spec{ID: "6f9619ff8b864011b42d00cf4fc964f"}, "UUID"},
		{"name", Spec{Name: "a b"}, `name "a b"`},
		{"long name", Spec{Name: long + "n"}, "name"},
		{"name begins with hyphen", Spec{Name: "-a"}, "name"},
		{"project", Spec{Project: "../x"}, "project"},
		{"label", Spec{Labels: map[string]string{"atoll.x": ""}}, "label"},
		{"empty label", Spec{Labels: map[string]string{"": "x"}}, "label"},
		{"env without =", Spec{Env: []string{"A=", "hunter2"}}, "environment: entry 2 must be KEY=value"},
		{"env without key", Spec{Env: []string{"=hunter2"}}, "environment: entry 1 must be KEY=value"},
		{"env with NUL", Spec{Env: []string{"A=hunter2\x00"}}, `environment "A": must be KEY=value without a NUL byte`},
		{"env of no text", Spec{Env: []string{"A=hunter2\xff"}}, `environment "A": must be UTF-8`},
		{"empty command", Spec{Cmd: []string{""}}, "command is empty"},
		{"relative workdir", Spec{Workdir: "work"}, "workdir"},
		{"root workdir", Spec{Workdir: "/x/.."}, "workdir"},
		{"user", Spec{User: "a b"}, "user"},
		{"half a user", Spec{User: "1:"}, "user"},
		{"mount target", Spec{Mounts: []Mount{{Type: MountTmpfs, Target: "x"}}}, "mount target"},
		{"mount over root", Spec{Mounts: []Mount{{Type: MountTmpfs, Target: "/"}}}, "mount target"},
		{"mount twice", Spec{Mounts: []Mount{{Type: MountTmpfs, Target: "/x"}, {Type: MountTmpfs, Target: "/y/../x"}}}, "used twice"},
		{"bind source", Spec{Mounts: []Mount{{Type: MountBind, Source: "x", Target: "/x"}}}, "mount source"},
		{"volume name", Spec{Mounts: []Mount{{Type: MountVolume, Source: "/x", Target: "/x"}}}, "volume name"},
		{"tmpfs source", Spec{Mounts: []Mount{{Type: MountTmpfs, Source: "x", Target: "/x"}}}, "no source"},
		{"mount type", Spec{Mounts: []Mount{{Type: "nfs", Target: "/x"}}}, "mount type"},
		{"size of a bind", Spec{Mounts: []Mount{{Type: MountBind, Source: "/x", Target: "/x", Size: 1}}}, "size"},
		{"memory", Spec{Resources: Resources{Memory: -2}}, "memory -2: must be positive"},
		{"cpus", Spec{Resources: Resources{CPUs: -0.5}}, "cpus -0.5: must be positive"},
		{"no number of cpus", Spec{Resources: Resources{CPUs: math.NaN()}}, "cpus NaN"},
		{"too many cpus", Spec{Resources: Resources{CPUs: math.Inf(1)}}, "cpus +Inf"},
		{"processes", Spec{Resources: Resources{Processes: -2}}, "processes -2"},
		{"disk", Spec{Resources: Resources{Disk: -2}}, "disk -2"},
		{"network mode", Spec{Network: Network{Mode: "host"}}, "network mode"},
		{"allow without network", Spec{Network: Network{Allow: []string{"x"}}}, "allow"},
		{"named network", Spec{Network: Network{Mode: NetworkNamed, Name: "team_net-1.x"}}, ""},
		{"nameless network", Spec{Network: Network{Mode: NetworkNamed}}, `network name ""`},
		{"the host's network", Spec{Network: Network{Mode: NetworkNamed, Name: "host"}}, `network name "host"`},
		{"no network by name", Spec{Network: Network{Mode: NetworkNamed, Name: "none"}}, `network name "none"`},
		{"the default network", Spec{Network: Network{Mode: NetworkNamed, Name: "default"}}, `network name "default"`},
		{"another's network", Spec{Network: Network{Mode: NetworkNamed, Name: "container:x"}}, `network name "container:x"`},
		{"network by its path", Spec{Network: Network{Mode: NetworkNamed, Name: "../x"}}, `network name "../x"`},
		{"name of no network", Spec{Network: Network{Mode: NetworkOn, Name: "x"}}, "needs mode named"},
		{"allow of a named network", Spec{Network: Network{Mode: NetworkNamed, Name: "x", Allow: []string{"y"}}}, "allow"},
		{"port", Spec{Ports: []Port{{Port: 0}}}, "port 0"},
		{"publish without network", Spec{Ports: []Port{{Port: 80, Publish: true}}}, "port 80: a published port needs a network"},
		{"host port without publish", Spec{Ports: []Port{{Port: 80, HostPort: 80}}}, "host port 80: needs publish"},
		{"host port", Spec{Network: Network{Mode: NetworkOn}, Ports: []Port{{Port: 80, Publish: true, HostPort: 65536}}}, "host port 65536"},
		{"host port twice", Spec{Network: Network{Mode: NetworkOn}, Ports: []Port{{Port: 80, Publish: true, HostPort: 80}, {Port: 81, Publish: true, HostPort: 80}}}, "host port 80: given twice"},
		{"random host ports", Spec{Network: Network{Mode: NetworkOn}, Ports: []Port{{Port: 80, Publish: true}, {Port: 81, Publish: true}}}, ""},
		{"cache paths", Spec{Cache: true, CachePaths: []string{".tool/cache", "a b"}}, ""},
		{"cache paths without cache", Spec{CachePaths: []string{".tool"}}, "need cache"},
		{"absolute cache path", Spec{Cache: true, CachePaths: []string{"/etc"}}, `cache path "/etc"`},
		{"cache path that leads out", Spec{Cache: true, CachePaths: []string{".tool/../../etc"}}, "cache path"},
		{"the home directory as cache", Spec{Cache: true, CachePaths: []string{"."}}, "cache path"},
		{"no cache path", Spec{Cache: true, CachePaths: []string{""}}, "cache path"},
		{"gpus", Spec{Resources: Resources{GPUs: "some"}}, `gpus "some"`},
		{"ttl", Spec{TTL: -1}, "ttl"},
		{"auto remove", Spec{AutoRemove: true}, "auto_remove"},
		{"pull policy", Spec{Pull: "sometimes"}, `pull "sometimes": use missing, always or never`},
		{"snapshot and image", Spec{Snapshot: "x", Image: "y"}, "snapshot"},
		{"first of two names", Spec{Name: "a b", Project: "c d"}, "name \"a b\""},
		{"first of many labels", Spec{Labels: map[string]string{"atoll.b": "", "atoll.c": "", "atoll.a": "", "atoll.d": ""}}, "atoll.a"},
		{"label of no text", Spec{Labels: map[string]string{"k": "\xff"}}, `label "\xff": must be UTF-8`},
		{"NUL in the workdir", Spec{Workdir: "/a\x00"}, "workdir \"/a\\x00\": contains a NUL byte"},
		{"NUL in a mount source", Spec{Mounts: []Mount{{Type: MountBind, Source: "/a\x00", Target: "/a"}}}, "mount source"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.spec.Validate()
			if tt.want == "" {
				if err != nil {
					t.Errorf("Validate: %v", err)
				}
				return
			}
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Validate: %v, want ErrInvalid that says %q", err, tt.want)
			}
		})
	}
}

// TestSpecIsText checks that Validate rejects invalid text in every string of a Spec.
func TestSpecIsText(t *testing.T) {
	full := func() *Spec {
		return &Spec{
			ID: NewID(), Name: "n", Project: "p", Provider: "q", Labels: map[string]string{"k": "v"}, Image: "i", Pull: PullAlways, Cmd: []string{"c"}, Env: []string{"A=b"},
			Workdir: "/w", User: "u", Mounts: []Mount{{Type: MountBind, Source: "/s", Target: "/t"}},
			Network: Network{Mode: NetworkOn, Allow: []string{"a"}}, Ports: []Port{{Name: "http", Port: 80}},
			Cache: true, CachePaths: []string{"p"}, Resources: Resources{GPUs: "all"},
		}
	}
	if err := full().Validate(); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"\xff", "\x00"} {
		for i := 0; ; i++ {
			s, left := full(), i
			at := nthString(reflect.ValueOf(s).Elem(), &left)
			if !at.IsValid() {
				if i != 18 {
					t.Errorf("found %d strings in a Spec", i)
				}
				break
			}
			at.SetString(at.String() + bad)
			if err := s.Validate(); !errors.Is(err, ErrInvalid) {
				t.Errorf("%+v: %v, want ErrInvalid", s, err)
			}
		}
		for _, s := range []*Spec{{Snapshot: bad}, {Network: Network{Mode: NetworkNamed, Name: bad}}, {Labels: map[string]string{"k": bad}}, {Labels: map[string]string{"k" + bad: ""}}} {
			if err := s.Validate(); !errors.Is(err, ErrInvalid) {
				t.Errorf("%+v: %v, want ErrInvalid", s, err)
			}
		}
	}
}

// nthString finds the n-th non-empty string in v, except those in maps.
func nthString(v reflect.Value, n *int) reflect.Value {
	switch v.Kind() {
	case reflect.String:
		if v.Len() == 0 {
			break
		}
		if *n == 0 {
			return v
		}
		*n--
	case reflect.Struct:
		for i := range v.NumField() {
			if found := nthString(v.Field(i), n); found.IsValid() {
				return found
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			if found := nthString(v.Index(i), n); found.IsValid() {
				return found
			}
		}
	}
	return reflect.Value{}
}

func TestSpecWithDefaults(t *testing.T) {
	zero := (&Spec{}).WithDefaults()
	if !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(zero.ID) || zero.Project != DefaultProject || zero.Workdir != "/work" || zero.Network.Mode != NetworkNone {
		t.Errorf("defaults of the zero Spec: %+v", zero)
	}
	s := &Spec{
		ID: "6F9619FF-8B86-4011-B42D-00CF4FC964FF", Project: "p", Workdir: "/w", Network: Network{Mode: NetworkOn, Allow: []string{"a"}},
		Labels: map[string]string{"k": "v"}, Cmd: []string{"c"}, Env: []string{"A=b"}, TTY: &Size{1, 2},
		Mounts: []Mount{{Type: MountTmpfs, Target: "/t"}}, Ports: []Port{{Port: 1}}, Cache: true, CachePaths: []string{"p"},
		System: System{Env: []string{"B=c"}, Notes: map[string]string{"k": "v"}, Warm: true},
	}
	if c := s.Clone(); !reflect.DeepEqual(c, s) {
		t.Errorf("the clone is %+v, want %+v", c, s)
	}
	c := s.WithDefaults()
	if c.ID != "6f9619ff8b864011b42d00cf4fc964ff" || c.Project != "p" || c.Workdir != "/w" || c.Network.Mode != NetworkOn {
		t.Errorf("WithDefaults: %+v", c)
	}
	before, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	c.Labels["k"], c.Cmd[0], c.Env[0], c.TTY.Rows, c.Mounts[0].Target, c.Ports[0].Port, c.Network.Allow[0], c.CachePaths[0] = "x", "x", "x", 9, "x", 9, "x", "x"
	c.System.Env[0], c.System.Notes["k"] = "x", "x"
	shallow := *s
	shallow.AddNote("k", "x")
	shallow.Environ()[0] = "x"
	if after, err := json.Marshal(s); string(after) != string(before) || err != nil {
		t.Errorf("a change of the copy changed the Spec:\n%s, was\n%s", after, before)
	}
	if c := (&Spec{}).Clone(); !reflect.DeepEqual(c, &Spec{}) {
		t.Errorf("the clone of the zero Spec is %+v", c)
	}
}

func TestSpecMadeBy(t *testing.T) {
	for _, name := range []string{"", "here"} {
		asked := &Spec{Provider: name}
		s, err := asked.Complete("here")
		if err != nil || s.Provider != "here" || s.ID == "" || s.Project != DefaultProject || asked.Provider != name {
			t.Errorf("Complete with provider %q: %+v, %v", name, s, err)
		}
	}
	_, err := (&Spec{Name: "web", Provider: "there"}).Complete("here")
	if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), `provider "there" not found; the only provider is here`) {
		t.Errorf("a spec of another provider, made here: %v", err)
	}
}

// TestSpecJSON checks that a Spec survives conversion to JSON and back.
func TestSpecJSON(t *testing.T) {
	s := Spec{
		ID: NewID(), Name: "n", Project: "p", Provider: "q", Labels: map[string]string{"k": "v"}, Image: "i", Pull: PullAlways, Cmd: []string{"c"}, Env: []string{"A=b"},
		Workdir: "/w", User: "u", TTY: &Size{1, 2}, OpenStdin: true, Workspace: WorkspaceRef{"w", "/s", "c", true}, Mounts: []Mount{{Type: MountTmpfs, Target: "/t", ReadOnly: true, Size: 5}},
		Resources: Resources{1, 2.5, 3, 4, "all"}, Network: Network{Mode: NetworkNamed, Name: "net"}, Secrets: []Secret{{Name: "KEY", Hosts: []string{"h"}, Source: "env:KEY", Placeholder: "p", Body: true}}, Ports: []Port{{"http", 80, true, 8080}}, ReadOnlyRoot: true,
		TTL: Duration(90 * time.Second), IdleStop: Never, IdleRemove: true, AutoRemove: true, NoStart: true, Snapshot: "s", Cache: true, CachePaths: []string{".tool"}, System: System{Env: []string{"B=c"}, Notes: map[string]string{"layer": "note"}, Warm: true},
	}
	for i, v := 0, reflect.ValueOf(s); i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Errorf("the test sets no %s", v.Type().Field(i).Name)
		}
	}
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var got Spec
	if err := json.Unmarshal(b, &got); err != nil || !reflect.DeepEqual(got, s) {
		t.Errorf("%s came back as %+v, %v", b, got, err)
	}
	if b, err := json.Marshal(Spec{}); string(b) != "{}" || err != nil {
		t.Errorf("the zero Spec is %s, %v; want {}", b, err)
	}
}

func TestResourcesWithDefaults(t *testing.T) {
	if got, want := (Resources{}).WithDefaults(), (Resources{DefaultMemory, 0, DefaultProcesses, DefaultDisk, ""}); got != want {
		t.Errorf("defaults %+v, want %+v", got, want)
	}
	set := Resources{Unlimited, 2, 3, 4, "all"}
	if got := set.WithDefaults(); got != set {
		t.Errorf("the settings became %+v", got)
	}
}

// No cache directory is below another, which would be a link inside the target of a link.
func TestCacheDirs(t *testing.T) {
	dirs := CacheDirs()
	for _, a := range dirs {
		if !ValidCachePath(a) {
			t.Errorf("%q is not a valid cache path", a)
		}
		for _, b := range dirs {
			if strings.HasPrefix(b, a+"/") {
				t.Errorf("%q is below %q", b, a)
			}
		}
	}
	dirs[0] = "changed"
	if CacheDirs()[0] == "changed" {
		t.Error("a change of the result changed later results")
	}
}

func TestSpecWorkspace(t *testing.T) {
	id := strings.Repeat("0a", 20)
	for ref, want := range map[WorkspaceRef]bool{
		{}:                                       true,
		{Name: "w"}:                              true,
		{Name: "w", Commit: id}:                  true,
		{Name: "w", ReadOnly: true}:              true,
		{Source: "/a"}:                           true,
		{Name: "w", Source: "/a"}:                false,
		{Commit: id}:                             false,
		{ReadOnly: true}:                         false,
		{Name: "a/b"}:                            false,
		{Source: "relative"}:                     false,
		{Name: "w", Commit: id[:7]}:              false,
		{Name: "w", Commit: "--" + id[2:]}:       false,
		{Name: "w", Commit: strings.ToUpper(id)}: false,
	} {
		err := (&Spec{Workspace: ref}).Validate()
		if (err == nil) != want || err != nil && KindOf(err) != ErrInvalid {
			t.Errorf("%+v: %v, want it valid: %v", ref, err, want)
		}
	}
}

// CheckCaps refuses each field whose cap is missing, says what to do instead, and accepts it otherwise.
func TestCheckCaps(t *testing.T) {
	all := Caps{
		Images: true, Snapshot: true, Workspaces: true, IdleStop: true, TTY: true, Users: true, ReadOnlyRoot: true, BindMounts: true,
		Volumes: true, Tmpfs: true, MemoryLimit: true, CPULimit: true, ProcessLimit: true, DiskLimit: true, GPU: true,
		NetworkOn: true, Egress: true, NetworkNamed: true, Publish: true, Cache: true,
	}
	for cap, spec := range map[string]Spec{
		"images":         {Pull: PullMissing},
		"snapshot":       {Snapshot: "s"},
		"workspaces":     {Workspace: WorkspaceRef{Name: "w"}},
		"idle_stop":      {IdleRemove: true},
		"tty":            {TTY: &Size{}},
		"users":          {User: "u"},
		"read_only_root": {ReadOnlyRoot: true},
		"bind_mounts":    {Mounts: []Mount{{Type: MountTmpfs}, {Type: MountBind}}},
		"volumes":        {Mounts: []Mount{{Type: MountVolume}}},
		"tmpfs":          {Mounts: []Mount{{Type: MountTmpfs}}},
		"memory_limit":   {Resources: Resources{Memory: 1}},
		"cpu_limit":      {Resources: Resources{CPUs: 1}},
		"process_limit":  {Resources: Resources{Processes: 1}},
		"disk_limit":     {Resources: Resources{Disk: 1}},
		"gpu":            {Resources: Resources{GPUs: "all"}},
		"network_on":     {Network: Network{Mode: NetworkOn}},
		"egress":         {Network: Network{Mode: NetworkEgress}},
		"network_named":  {Network: Network{Mode: NetworkNamed}},
		"publish":        {Ports: []Port{{Port: 80, Publish: true}}},
		"cache":          {Cache: true},
	} {
		if err := spec.CheckCaps("p", all, nil); err != nil {
			t.Errorf("%s, with all caps: %v", cap, err)
		}
		caps := all
		if err := json.Unmarshal([]byte(`{"`+cap+`": false}`), &caps); err != nil {
			t.Fatal(err)
		}
		err := spec.CheckCaps("p", caps, map[string]string{cap: "do this"})
		if KindOf(err) != ErrUnsupported || !strings.Contains(err.Error(), "provider p has no ") || !strings.HasSuffix(err.Error(), ": do this") {
			t.Errorf("%s, without the cap: %v", cap, err)
		}
	}
}

func TestDuration(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"90s": 90 * time.Second, "1h30m": 90 * time.Minute, "5": 5 * time.Second, "0.5": 500 * time.Millisecond, "0": 0, "-1s": -time.Second,
		"1d": 24 * time.Hour, "2w": 14 * 24 * time.Hour, "1w1d": 8 * 24 * time.Hour, "1d12h": 36 * time.Hour, "0d": 0, "8191w8191d": 65528 * 24 * time.Hour,
	} {
		var d Duration
		if err := d.UnmarshalText([]byte(in)); err != nil || time.Duration(d) != want {
			t.Errorf("%q is %v, %v; want %v", in, d, err, want)
		}
		text, err := d.MarshalText()
		var again Duration
		if err != nil || again.UnmarshalText(text) != nil || again != d {
			t.Errorf("%v printed %q, which is %v", d, text, again)
		}
	}
	for in, want := range map[string]time.Duration{
		`"90s"`: 90 * time.Second, `"5"`: 5 * time.Second, `5`: 5 * time.Second, `0.5`: 500 * time.Millisecond, `-1`: -time.Second, `1e1`: 10 * time.Second, `null`: 7,
	} {
		d := Duration(7)
		if err := json.Unmarshal([]byte(in), &d); err != nil || time.Duration(d) != want {
			t.Errorf("JSON %s is %v, %v; want %v", in, d, err, want)
		}
	}
	for _, in := range []string{`true`, `{}`, `[5]`, `"soon"`, `1e300`} {
		d := Duration(7)
		if err := json.Unmarshal([]byte(in), &d); err == nil || d != 7 {
			t.Errorf("JSON %s is %v, want an error", in, d)
		}
	}
	for _, in := range []string{"nan", "inf", "1e10", "", "x", "5 m", "1y", "d", "1d1w", "1.5d", "-1d", "1d-1h", "8192d", "8191w8191d2000000h"} {
		var d Duration
		if err := d.UnmarshalText([]byte(in)); err == nil {
			t.Errorf("%q is %v, want an error", in, d)
		}
	}
}

func TestBytes(t *testing.T) {
	for in, want := range map[string]Bytes{
		"0": 0, "1048576": 1 << 20, "512m": 512 << 20, "2GiB": 2 << 30, "1.5g": 3 << 29, " 4 kb ": 4096, "1T": 1 << 40,
		"unlimited": Unlimited, "-1": Unlimited,
	} {
		if got, err := ParseBytes(in); got != want || err != nil {
			t.Errorf("ParseBytes(%q) = %d, %v; want %d", in, got, err, want)
		}
		if got, err := ParseBytes(want.String()); got != want || err != nil {
			t.Errorf("%d prints %q, which is %d, %v", want, want, got, err)
		}
	}
	for _, in := range []string{"", "x", "m", "1.2.3g", "-5", "5x", "1e9", "99999999999t"} {
		if got, err := ParseBytes(in); err == nil {
			t.Errorf("ParseBytes(%q) = %d, want an error", in, got)
		}
	}
	for b, want := range map[Bytes]string{0: "0", 1000: "1000", 1024: "1k", 1536: "1536", 3 << 30: "3g", Unlimited: "unlimited"} {
		if got := b.String(); got != want {
			t.Errorf("%d prints %q, want %q", int64(b), got, want)
		}
	}
}

func TestGPUs(t *testing.T) {
	for _, tt := range []struct {
		gpus  GPUs
		count int
		ids   []string
		ok    bool
	}{
		{"", 0, nil, true},
		{"all", -1, nil, true},
		{"2", 2, nil, true},
		{"device=0,GPU-3a23c669", 0, []string{"0", "GPU-3a23c669"}, true},
		{"device=MIG-GPU-3a23c669/0/0", 0, []string{"MIG-GPU-3a23c669/0/0"}, true},
		{"0", 0, nil, false},
		{"-1", 0, nil, false},
		{"device=", 0, nil, false},
		{"device=0,", 0, nil, false},
		{"device=0,capabilities=utility", 0, nil, false},
		{"some", 0, nil, false},
	} {
		count, ids, err := tt.gpus.Devices()
		if count != tt.count || !slices.Equal(ids, tt.ids) || (err == nil) != tt.ok {
			t.Errorf("%q: %d, %q, %v; want %d, %q, ok %v", tt.gpus, count, ids, err, tt.count, tt.ids, tt.ok)
		}
	}
}

func TestSecretSources(t *testing.T) {
	for source, want := range map[string]string{
		"env:KEY": "", "file:/key": "", "vault:secret/ci#token": "", "aws:ci": "", "aws:arn:aws:secretsmanager:eu-west-1:1:secret:ci#token": "", "keyring:https://svc/me@x": "",
		"KEY": "name what is to be read", "env:": "name what is to be read", "safe:x": "use env:VARIABLE, file:/path", "file:key": "must be absolute", "aws:a\nb": "one line",
		"vault:secret/ci": "use vault:MOUNT/PATH#FIELD", "vault:secret#token": "use vault:", "vault:secret/ci#": "use vault:",
		"aws:#token": "use aws:SECRET", "aws:ci#": "use aws:SECRET", "keyring:svc": "use keyring:SERVICE/ACCOUNT", "keyring:svc/": "use keyring:", "keyring:/me": "use keyring:",
	} {
		s := Spec{Network: Network{Mode: NetworkEgress}, Secrets: []Secret{{Name: "KEY", Hosts: []string{"a.example"}, Source: source}}}
		err := s.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", source, err, want)
		}
	}
}
