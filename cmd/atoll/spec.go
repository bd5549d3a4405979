package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed46cd37a8/atoll"
)

// specFlags are the flags of a new sandbox, which run and create share. They have the names of docker's.
type specFlags struct {
	spec    atoll.Spec
	env     envFlags
	labels  []string
	work    string
	volumes []string
	mounts  []string
	expose  []string
	publish []string
	network string
	secrets []string
	policy  string
	quiet   bool
}

func (f *specFlags) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&f.spec.Name, "name", "", "`name` of the sandbox, unique in its project")
	fs.StringVar(&f.spec.ID, "id", "", "`id` of the sandbox, a UUID (default a random one)")
	fs.StringVar(&f.spec.Image, "image", "", "root file system: an OCI `image`, or host for this machine's own tools (default the provider's)")
	fs.StringVar((*string)(&f.spec.Pull), "pull", "", "`when` to ask the image's registry: missing, always or never (default missing)")
	fs.StringVar(&f.spec.Snapshot, "snapshot", "", "`id` of a snapshot to start from, instead of an image")
	fs.StringVarP(&f.spec.Workdir, "workdir", "w", "", "`directory` that commands start in (default "+atoll.DefaultWorkdir+")")
	fs.StringVarP(&f.spec.User, "user", "u", "", "`user` that commands run as: name, UID or UID:GID")
	f.env.addFlags(fs)
	fs.StringArrayVarP(&f.labels, "label", "l", nil, "label, `KEY=value`")
	fs.StringVar(&f.work, "workspace", "", "`workspace` of the sandbox: its name, a directory to use in place, or the address of a git repository")
	fs.StringArrayVarP(&f.volumes, "volume", "v", nil, "mount `SOURCE:TARGET[:ro]`; a source with a slash is a directory here, otherwise a named volume")
	fs.StringArrayVar(&f.mounts, "mount", nil, "mount described by `fields`, with commas between them: type=bind|volume|tmpfs, source=, target=, readonly, tmpfs-size=")
	fs.VarP((*bytesValue)(&f.spec.Resources.Memory), "memory", "m", "memory limit, like 512m; -1 for none (default "+atoll.DefaultMemory.String()+")")
	fs.Float64Var(&f.spec.Resources.CPUs, "cpus", 0, "maximum `number` of CPUs, like 1.5 (default all)")
	fs.IntVar(&f.spec.Resources.Processes, "pids", 0, fmt.Sprintf("maximum `number` of processes; -1 for no limit (default %d)", atoll.DefaultProcesses))
	fs.Var((*bytesValue)(&f.spec.Resources.Disk), "disk", "limit of files written outside of volumes, like 4g; -1 for none (default "+atoll.DefaultDisk.String()+")")
	fs.StringVar(&f.network, "network", "", "`mode` of the network: none, on, egress for hosts of --allow only, or named:NAME for a network of the engine, with everything it reaches (default none)")
	fs.StringArrayVar(&f.spec.Network.Allow, "allow", nil, "`host`, network, set of hosts like npm, or requests like \"GET example.com/path\" that the sandbox can reach; implies --network egress")
	fs.StringArrayVar(&f.spec.Network.Deny, "deny", nil, "the same kind of `entry`, which the sandbox cannot reach although something else opens it")
	fs.StringArrayVar(&f.secrets, "secret", nil, "`NAME[=SOURCE]@HOST[,HOST]`: requests to these hosts get the value from env:VARIABLE, file:PATH, vault:MOUNT/PATH#FIELD, aws:SECRET or keyring:SERVICE/ACCOUNT, and programs inside only a placeholder in NAME")
	fs.StringVar(&f.policy, "policy", "", "`file` in YAML with the lists allow, deny, rules and secrets")
	fs.StringArrayVar(&f.expose, "expose", nil, "`[NAME=]PORT` that a command inside listens on; other ports can be reached, too")
	fs.StringArrayVarP(&f.publish, "publish", "p", nil, "`[HOST:]PORT` to publish on 127.0.0.1, as HOST or any free port: by atoll run while it runs, else with --network named:NAME only")
	fs.StringVar((*string)(&f.spec.Resources.GPUs), "gpus", "", "`GPUs` of the sandbox: all, a number, or a list like device=0,1 (default none)")
	fs.BoolVar(&f.spec.Cache, "cache", false, "share the caches of package managers and compilers with all sandboxes of the project")
	fs.StringArrayVar(&f.spec.CachePaths, "cache-path", nil, "additional `directory` below the home directory to cache; implies --cache")
	fs.BoolVar(&f.spec.ReadOnlyRoot, "read-only", false, "make the root file system read-only")
	fs.Var((*durationValue)(&f.spec.TTL), "ttl", "remove the sandbox so long after its creation, like 1h or 2d")
	fs.Var((*idleValue)(&f.spec.IdleStop), "idle-stop", "stop the sandbox when it has been idle for so long, like 30m; its files remain; 0 for never")
	fs.BoolVar(&f.spec.IdleRemove, "idle-remove", false, "remove an idle sandbox with its data volume, instead of stopping it")
	registerQuiet(fs, &f.quiet)

	// docker's name for --pids.
	fs.IntVar(&f.spec.Resources.Processes, "pids-limit", 0, "")
	_ = fs.MarkHidden("pids-limit")
}

// buildSpec returns the complete Spec.
func (f *specFlags) buildSpec(ctx context.Context, a *app, args []string) (*atoll.Spec, error) {
	cfg, err := a.loadConfig()
	if err != nil {
		return nil, err
	}
	s := f.spec
	s.Project, s.Provider, s.Cmd = requestProject(cfg), cfg.ProviderOf(cfg.Project), args
	if s.Image, err = absImage(s.Image); err != nil {
		return nil, err
	}
	if err := f.addPolicy(&s); err != nil {
		return nil, err
	}
	if err := f.addSecrets(ctx, &s, a.env, cfg.URL); err != nil {
		return nil, err
	}
	if err := f.setNetwork(&s); err != nil {
		return nil, err
	}
	if s.Network.Mode == atoll.NetworkEgress {
		s.Network.Allow = append(s.Network.Allow, withoutEntries(cfg.AllowOf(requestProject(cfg)), s.Network.Allow)...)
	}
	if err := f.refusePublish(s.Network); err != nil {
		return nil, err
	}
	s.Cache = s.Cache || len(s.CachePaths) > 0
	if s.Env, err = f.env.listVars(a.env); err != nil {
		return nil, err
	}
	for _, l := range f.labels {
		if s.Labels == nil {
			s.Labels = map[string]string{}
		}
		k, v, _ := strings.Cut(l, "=")
		s.Labels[k] = v
	}
	if s.Workspace, err = parseWorkspace(f.work); err != nil {
		return nil, err
	}
	if s.Workspace != (atoll.WorkspaceRef{}) {
		s.Env = append(gitIdentity(a.env, s.Workspace.Source), s.Env...)
	}
	for _, v := range f.volumes {
		m, err := parseVolume(v)
		if err != nil {
			return nil, err
		}
		s.Mounts = append(s.Mounts, m)
	}
	for _, v := range f.mounts {
		m, err := parseMount(v)
		if err != nil {
			return nil, err
		}
		s.Mounts = append(s.Mounts, m)
	}
	for _, v := range f.expose {
		p, err := parseExpose(v)
		if err != nil {
			return nil, err
		}
		s.Ports = append(s.Ports, p)
	}
	for _, v := range f.publish {
		p, err := parsePublish(v)
		if err != nil {
			return nil, err
		}
		s.Ports = append(s.Ports, p)
	}
	return &s, s.Validate()
}

// setNetwork parses --network. A network of the engine must be requested explicitly, so that a typo does not open
// what the modes keep closed.
func (f *specFlags) setNetwork(s *atoll.Spec) error {
	n := &s.Network
	mode, name, hasName := strings.Cut(f.network, ":")
	n.Mode, n.Name = atoll.NetworkMode(mode), name
	switch {
	case f.network == "" && (len(n.Allow) > 0 || s.NeedsGateway()):
		n.Mode = atoll.NetworkEgress
	case f.network == "":
	case mode == "bridge" || mode == "default":
		return usageErrorf("network %q: use on for a network with access to the Internet", f.network)
	case mode == "host":
		return usageErrorf("network %q: sandboxes do not share the host's network; use on, or egress with --allow for single hosts", f.network)
	case (n.Mode == atoll.NetworkNamed) != hasName || !slices.Contains(networkModes, mode):
		return usageErrorf("network %q: use none, on or egress, or named:NAME for one of the engine's networks", f.network)
	}
	return nil
}

// networkModes are the modes of --network.
var networkModes = []string{
	string(atoll.NetworkNone), string(atoll.NetworkOn), string(atoll.NetworkEgress), string(atoll.NetworkNamed),
}

// parsePublish parses docker's -p. Ports are published on loopback only.
func parsePublish(s string) (atoll.Port, error) {
	all, err := parseForwards([]string{s})
	if err != nil {
		return atoll.Port{}, usageErrorf("publish %q: write it like 80, or 8080:80; the address is always 127.0.0.1", s)
	}
	p := atoll.Port{Port: all[0].inside, Publish: true}
	if strings.Contains(s, ":") {
		p.HostPort = all[0].local
	}
	return p, nil
}

// absImage makes the path of a local image absolute, as in ./rootfs or oci:layout:tag. It returns names of other
// images unchanged.
func absImage(ref string) (string, error) {
	if ref == "." || ref == ".." || strings.HasPrefix(ref, "./") || strings.HasPrefix(ref, "../") {
		return filepath.Abs(ref)
	}
	scheme, name, _ := strings.Cut(ref, ":")
	switch scheme {
	case "oci", "docker-archive", "dir":
		if name == "" || filepath.IsAbs(name) {
			return ref, nil
		}
		abs, err := filepath.Abs(name)
		return scheme + ":" + abs, err
	}
	return ref, nil
}

// envFlags has the flags -e and --env-file.
type envFlags struct {
	vars  []string
	files []string
}

func (f *envFlags) addFlags(fs *pflag.FlagSet) {
	fs.StringArrayVarP(&f.vars, "env", "e", nil, "environment variable, `KEY[=value]`; without a value, that of this process is used")
	fs.StringArrayVar(&f.files, "env-file", nil, "`file` of environment variables, one per line")
}

// listVars returns the variables of the files, and then the others, which take precedence. A variable without a value
// gets that of ours, and is left out if ours has none.
func (f *envFlags) listVars(ours []string) ([]string, error) {
	var vars []string
	for _, name := range f.files {
		some, err := readEnvFile(name)
		if err != nil {
			return nil, err
		}
		vars = append(vars, some...)
	}
	if slices.Contains(f.vars, "") {
		return nil, usageErrorf(`environment "": write it like KEY=value, or KEY for the value of this process`)
	}
	vars = append(vars, f.vars...)
	var out []string
	for _, v := range vars {
		if strings.Contains(v, "=") {
			out = append(out, v)
			continue
		}
		i := slices.IndexFunc(ours, func(kv string) bool { return strings.HasPrefix(kv, v+"=") })
		if i >= 0 {
			out = append(out, ours[i])
		}
	}
	return out, nil
}

// readEnvFile returns the lines of a file of variables, without comments and empty lines.
func readEnvFile(name string) ([]string, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var vars []string
	n := 0
	for line := range strings.Lines(strings.TrimPrefix(string(data), byteOrderMark)) {
		n++
		line = strings.TrimLeftFunc(strings.TrimRight(line, "\r\n"), unicode.IsSpace)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, _, _ := strings.Cut(line, "=")
		switch rest, isExport := strings.CutPrefix(key, "export "); {
		case isExport:
			return nil, usageErrorf("%s:%d: this is no shell script: write %s=... without export", name, n, strings.TrimSpace(rest))
		case key == "" || strings.ContainsFunc(key, unicode.IsSpace) || !utf8.ValidString(line) || strings.ContainsRune(line, 0):
			return nil, usageErrorf("%s:%d: %q is not a variable: write it like KEY=value, or KEY for the value of this process", name, n, key)
		}
		vars = append(vars, line)
	}
	return vars, nil
}

// byteOrderMark is U+FEFF, with which some editors begin a file in UTF-8.
const byteOrderMark = "\uFEFF"

// parseVolume parses docker's -v.
func parseVolume(s string) (atoll.Mount, error) {
	parts := strings.Split(s, ":")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || parts[1] == "" {
		return atoll.Mount{}, usageErrorf("volume %q: write it like ./dir:/target, name:/target or name:/target:ro", s)
	}
	m := atoll.Mount{Type: atoll.MountVolume, Source: parts[0], Target: parts[1]}
	if len(parts) == 3 {
		switch parts[2] {
		case "ro":
			m.ReadOnly = true
		case "rw":
		default:
			return atoll.Mount{}, usageErrorf("volume %q: the last part must be ro or rw", s)
		}
	}
	return bindIfPath(m)
}

// bindIfPath turns a mount whose source is a path into a bind mount.
func bindIfPath(m atoll.Mount) (atoll.Mount, error) {
	if m.Type == atoll.MountVolume && !strings.ContainsRune(m.Source, '/') && m.Source != "." && m.Source != ".." {
		return m, nil
	}
	abs, err := filepath.Abs(m.Source)
	m.Type, m.Source = atoll.MountBind, abs
	return m, err
}

// parseMount parses docker's --mount.
func parseMount(s string) (atoll.Mount, error) {
	m := atoll.Mount{Type: atoll.MountVolume}
	for field := range strings.SplitSeq(s, ",") {
		k, v, _ := strings.Cut(field, "=")
		var err error
		switch k {
		case "type":
			m.Type = atoll.MountType(v)
		case "source", "src":
			m.Source = v
		case "target", "destination", "dst":
			m.Target = v
		case "readonly", "ro":
			m.ReadOnly = v == "" || v == "true" || v == "1"
		case "tmpfs-size":
			m.Size, err = atoll.ParseBytes(v)
		default:
			err = fmt.Errorf("unknown key %q: use type, source, target, readonly or tmpfs-size", k)
		}
		if err != nil {
			return m, usageErrorf("mount %q: %w", s, err)
		}
	}
	if m.Type == atoll.MountBind && m.Source != "" {
		return bindIfPath(m)
	}
	return m, nil
}

func parseExpose(s string) (atoll.Port, error) {
	var p atoll.Port
	num := s
	if name, rest, ok := strings.Cut(s, "="); ok {
		p.Name, num = name, rest
	}
	n, err := parsePort(num)
	if err != nil {
		return p, usageErrorf("expose %q: write it like 8080 or web=8080", s)
	}
	p.Port = n
	return p, nil
}

// bytesValue is a flag with a size.
type bytesValue atoll.Bytes

func (b *bytesValue) Set(s string) error {
	n, err := atoll.ParseBytes(s)
	*b = bytesValue(n)
	return err
}

func (b *bytesValue) String() string {
	if *b == 0 {
		return ""
	}
	return atoll.Bytes(*b).String()
}

func (b *bytesValue) Type() string { return "size" }

// durationValue is a flag with a duration.
type durationValue atoll.Duration

func (d *durationValue) Set(s string) error { return (*atoll.Duration)(d).UnmarshalText([]byte(s)) }

func (d *durationValue) String() string {
	if *d == 0 {
		return ""
	}
	return atoll.Duration(*d).String()
}

func (d *durationValue) Type() string { return "duration" }

// idleValue is a flag with a duration; 0 means never.
type idleValue atoll.Duration

func (d *idleValue) Set(s string) error {
	err := (*atoll.Duration)(d).UnmarshalText([]byte(s))
	if err == nil && *d == 0 {
		*d = idleValue(atoll.Never)
	}
	return err
}

func (d *idleValue) String() string { return (*durationValue)(d).String() }

func (d *idleValue) Type() string { return "duration" }

// stopAtCommand makes all arguments from the first one on belong to the command to run, including flags.
func stopAtCommand(cmd *cobra.Command) { cmd.Flags().SetInterspersed(false) }

// withoutDashes removes a "--" between a sandbox and a command.
func withoutDashes(args []string) []string {
	if len(args) > 0 && args[0] == "--" {
		return args[1:]
	}
	return args
}
