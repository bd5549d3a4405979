// Package template has the recipes of sandboxes that agents work in: what the sandbox is
// made from, which of its directories is kept in object storage and where, how the agent
// is run, and what else is done when ([hooks.Hooks]).
//
// A [Set] knows them by name. It begins with claude-code, codex and shell, and gets more
// from Go and from YAML:
//
//	set := template.NewSet()
//	err := set.Register("mine", func(agentID string) (*template.Template, error) {
//		return &template.Template{
//			Spec:       atoll.Spec{Image: "debian:13"},
//			KeyPrefix:  "agents/{account}/{agent}",
//			InitFromS3: true,
//			Agent:      template.Agent{Command: []string{"mine", "--prompt", "{prompt}"}},
//			Hooks:      hooks.Default(),
//		}, nil
//	})
//	...
//	err = set.LoadDir("/etc/atoll/templates")
//	t, err := set.Get("mine", agentID)
//
// examples/templates/reviewer.yaml shows and explains what can stand in a file.
package template

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/hooks"
)

// A Template is a recipe of sandboxes. What Set.Get returns is the caller's own.
type Template struct {
	Name string `yaml:"-"` // the Set's to give
	Doc  string `yaml:"doc"`

	// Provider makes the sandboxes; "" means the default one.
	Provider string `yaml:"provider"`
	// Spec is what they are made from. What belongs to one sandbox alone, as ID and Name
	// do, must not be in it.
	Spec atoll.Spec `yaml:"spec"`
	// Volume is a pattern for the name of a volume of the project that is mounted at Dir.
	// "" means that Dir is in the sandbox's own data volume, if it is the work directory.
	Volume string `yaml:"volume"`
	// Dir is the directory that the agent works in, and that is synced; "" means the
	// Spec's Workdir, or else atoll.DefaultWorkdir.
	Dir string `yaml:"dir"`

	// Bucket is a pattern for where versions of Dir are kept, in the forms of sync.store;
	// "" means there.
	Bucket string `yaml:"bucket"`
	// KeyPrefix is a pattern for what their keys begin with; "" means DefaultKeyPrefix.
	KeyPrefix string `yaml:"key_prefix"`
	// InitFromS3 has sandboxes begin with the latest version.
	InitFromS3 bool `yaml:"init_from_s3"`
	// Policy says what outlives a sandbox; see PolicyFor.
	Policy Policy `yaml:"policy"`
	// KeepVersions and KeepDays say which versions stay when old ones are removed: the
	// newest ones, and those that are no older. With neither all of them do.
	KeepVersions int `yaml:"keep_versions"`
	KeepDays     int `yaml:"keep_days"`

	Agent Agent `yaml:"agent"`
	// Hooks are run at the four moments of a sandbox's life; none are by default, so
	// whoever makes a Template in Go begins with hooks.Default.
	Hooks hooks.Hooks `yaml:"-"`
}

// DefaultKeyPrefix is the KeyPrefix of a Template that has none.
const DefaultKeyPrefix = "docs/{account}/{conversation}"

// Policy says what outlives a sandbox.
type Policy string

// The policies.
const (
	// PolicyEphemeral keeps nothing: the sandbox's end removes its data volume too, and
	// nothing is pushed at any time.
	PolicyEphemeral Policy = "ephemeral"
	// PolicyPersistent keeps volumes: the sandbox's end leaves its data volume, which the
	// next sandbox of its id has again. What is in object storage is not changed.
	PolicyPersistent Policy = "persistent"
	// PolicySynced keeps versions: Dir is pushed after each turn, and once more when the
	// sandbox is to end. That removes its data volume only if the last push did not fail.
	// Volumes with a name stay always.
	PolicySynced Policy = "synced"
)

// PolicyFor returns the Policy, or what it is where none is set: PolicySynced where
// there is a place for versions, else PolicyPersistent. Kinds: ErrInvalid (it is
// PolicySynced, and there is no place).
func (t *Template) PolicyFor(stored bool) (Policy, error) {
	switch {
	case t.Policy == PolicySynced && !stored:
		return "", t.bad("policy synced: there is no place for versions: give the template a bucket, or set sync.store")
	case t.Policy != "":
		return t.Policy, nil
	case stored:
		return PolicySynced, nil
	}
	return PolicyPersistent, nil
}

// WorkDir is the Dir, or what it is where none is set.
func (t *Template) WorkDir() string {
	return path.Clean(cmp.Or(t.Dir, t.Spec.Workdir, atoll.DefaultWorkdir))
}

// SpecFor returns what a sandbox is made from: the Spec, made by the Provider, with the
// Volume. Kinds: ErrInvalid (the Volume cannot be named after n).
func (t *Template) SpecFor(n Names) (*atoll.Spec, error) {
	spec := t.Spec.Clone()
	spec.Provider = t.Provider
	if t.Volume == "" {
		return spec, nil
	}
	volume, err := volumeName(t.Volume, n)
	if err != nil {
		return nil, t.bad("volume: %w", err)
	}
	spec.Mounts = append(spec.Mounts, atoll.Mount{Type: atoll.MountVolume, Source: volume, Target: t.WorkDir()})
	return spec, nil
}

// Place returns where versions of a directory are kept, in the forms of sync.store,
// which store is. It is "" if neither that nor the Bucket is set. No two accounts have
// the same place if their names are in it. Kinds: ErrInvalid (it cannot be named after n).
func (t *Template) Place(n Names, store string) (string, error) {
	bucket, err := expand(t.Bucket, n)
	if err != nil {
		return "", t.bad("bucket: %w", err)
	}
	prefix, err := expand(strings.Trim(cmp.Or(t.KeyPrefix, DefaultKeyPrefix), "/"), n)
	if err != nil {
		return "", t.bad("key_prefix: %w", err)
	}
	if bucket = cmp.Or(bucket, store); bucket == "" {
		return "", nil
	}
	return strings.TrimRight(bucket, "/") + "/" + prefix, nil
}

// bad is an error of this template.
func (t *Template) bad(format string, args ...any) error {
	return atoll.Errorf("template", t.Name, atoll.ErrInvalid, format, args...)
}

// Validate reports the first thing in t that makes no sense, as an ErrInvalid that says
// what to write instead.
func (t *Template) Validate() error {
	if !atoll.ValidName(t.Name) {
		return t.bad("name %q: use a letter or digit, then up to 64 letters, digits, '-' or '_'", t.Name)
	}
	if t.Provider != "" && !atoll.ValidName(t.Provider) {
		return t.bad("provider %q: use the name of one, like gvisor", t.Provider)
	}
	if err := t.validSpec(); err != nil {
		return err
	}
	if t.Dir != "" && (!path.IsAbs(t.Dir) || path.Clean(t.Dir) == "/" || strings.ContainsRune(t.Dir, 0)) {
		return t.bad("dir %q: must be an absolute path other than /", t.Dir)
	}
	if err := t.validPatterns(); err != nil {
		return t.bad("%w", err)
	}
	switch t.Policy {
	case "", PolicyEphemeral, PolicyPersistent, PolicySynced:
	default:
		return t.bad("policy %q: use ephemeral, persistent or synced", t.Policy)
	}
	if t.KeepVersions < 0 || t.KeepDays < 0 {
		return t.bad("keep_versions and keep_days must be positive, or 0 for all")
	}
	if err := t.Agent.validate(); err != nil {
		return t.bad("agent: %w", err)
	}
	return nil
}

// validSpec refuses what is one sandbox's alone.
func (t *Template) validSpec() error {
	s := &t.Spec
	for _, own := range []struct {
		key string
		set bool
		why string
	}{
		{"id", s.ID != "", "each sandbox has its own"},
		{"name", s.Name != "", "each sandbox has its own"},
		{"provider", s.Provider != "", "it belongs beside spec"},
		{"no_start", s.NoStart, "the agent needs a sandbox that runs"},
		{"auto_remove", s.AutoRemove, "a sandbox outlives its turns"},
	} {
		if own.set {
			return t.bad("spec.%s: leave it out: %s", own.key, own.why)
		}
	}
	if err := s.Validate(); err != nil {
		return t.bad("spec: %w", err)
	}
	mounted := func(m atoll.Mount) bool { return path.Clean(m.Target) == t.WorkDir() }
	if t.Volume != "" && slices.ContainsFunc(s.Mounts, mounted) {
		return t.bad("volume: %s has another mount", t.WorkDir())
	}
	return nil
}

func (t *Template) validPatterns() error {
	if t.Volume != "" {
		if err := checkPattern("volume", t.Volume); err != nil {
			return err
		}
		if _, err := volumeName(t.Volume, Names{"a", "a", "a", "a"}); err != nil {
			return fmt.Errorf("volume: %w", err)
		}
		if err := checkOwner("volume", t.Volume); err != nil {
			return err
		}
	}
	if err := checkParts("bucket", t.Bucket); err != nil {
		return err
	}
	if err := checkKeys(t.KeyPrefix); err != nil {
		return err
	}
	return checkOwner("key_prefix", t.Bucket+"/"+cmp.Or(t.KeyPrefix, DefaultKeyPrefix))
}
