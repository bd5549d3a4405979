package supervised

import (
	"reflect"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// A new field of Spec must be in one of these: a sandbox gets it after its boot, or only from its boot.
var (
	afterBoot = map[string]atoll.Spec{
		"ID": {ID: atoll.NewID()}, "Name": {Name: "x"}, "Project": {Project: "x"}, "Labels": {Labels: map[string]string{"a": "b"}}, "Provider": {Provider: "x"},
		"Cmd": {Cmd: []string{"x"}}, "Env": {Env: []string{"A=b"}}, "Workdir": {Workdir: "/x"}, "User": {User: "x"}, "TTY": {TTY: &atoll.Size{Rows: 1}},
		"OpenStdin": {OpenStdin: true}, "TTL": {TTL: 1}, "IdleStop": {IdleStop: 1}, "IdleRemove": {IdleRemove: true}, "AutoRemove": {AutoRemove: true},
		"System": {System: atoll.System{Env: []string{"A=b"}}},
	}
	fromBoot = map[string]atoll.Spec{
		"Image": {Image: "x"}, "Pull": {Pull: atoll.PullAlways}, "Workspace": {Workspace: atoll.WorkspaceRef{Name: "x"}}, "Mounts": {Mounts: []atoll.Mount{{Target: "/x"}}},
		"Network": {Network: atoll.Network{Mode: atoll.NetworkOn}}, "ReadOnlyRoot": {ReadOnlyRoot: true}, "Cache": {Cache: true},
		"CachePaths": {CachePaths: []string{"x"}}, "NoStart": {NoStart: true}, "Snapshot": {Snapshot: "x"},
		"Secrets":   {Network: atoll.Network{Mode: atoll.NetworkEgress}, Secrets: []atoll.Secret{{Name: "KEY"}}},
		"Resources": {Resources: atoll.Resources{GPUs: "all"}}, "Ports": {Ports: []atoll.Port{{Port: 1, Publish: true}}},
	}
)

// A Create takes a booted sandbox only if the sandbox can get all of the spec, or has it from its boot: its limits.
func TestBootShape(t *testing.T) {
	stock := bootShape(&atoll.Spec{}, "host")
	fits := func(spec atoll.Spec) bool { return bootShape(spec.WithDefaults(), "host") == stock }
	for _, field := range reflect.VisibleFields(reflect.TypeFor[atoll.Spec]()) {
		after, isAfter := afterBoot[field.Name]
		from, isFrom := fromBoot[field.Name]
		switch {
		case isAfter == isFrom:
			t.Errorf("Spec.%s is new: add it to afterBoot or fromBoot", field.Name)
		case isAfter && !fits(after):
			t.Errorf("%s excludes a booted sandbox", field.Name)
		case isFrom && fits(from):
			t.Errorf("a booted sandbox cannot have %s", field.Name)
		}
	}
	for want, all := range map[bool][]atoll.Spec{
		true: {
			{}, {Image: "host"}, {Ports: []atoll.Port{{Port: 1}}},
			{Resources: atoll.Resources{CPUs: 1}}, {Resources: atoll.Resources{Processes: 50}}, {Resources: atoll.Resources{Disk: 1 << 20}}, {Resources: atoll.Resources{Memory: atoll.Unlimited}},
		},
		false: {
			{Network: atoll.Network{Mode: atoll.NetworkNamed, Name: "x"}},
		},
	} {
		for _, spec := range all {
			if fits(spec) != want {
				t.Errorf("%+v fits: %t, want %t", spec, !want, want)
			}
		}
	}
}
