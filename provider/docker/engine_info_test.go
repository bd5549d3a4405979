package docker

import (
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// A limit that the engine cannot enforce is an error if the spec has it, and left out if it is a
// default.
func TestEnforceableLimits(t *testing.T) {
	all := engineInfo{memory: true, cpu: true, pids: true}
	for _, tt := range []struct {
		name string
		can  engineInfo
		ask  atoll.Resources
		want atoll.Resources
		kind atoll.Kind
	}{
		{name: "defaults", can: all, want: atoll.Resources{}.WithDefaults()},
		{name: "lifted", can: engineInfo{}, ask: atoll.Resources{Memory: atoll.Unlimited, CPUs: atoll.Unlimited, Processes: atoll.Unlimited}},
		{name: "no memory limit", can: engineInfo{cpu: true, pids: true}, ask: atoll.Resources{Memory: 1 << 30}, kind: atoll.ErrUnsupported},
		{name: "no CPU limit", can: engineInfo{memory: true, pids: true}, ask: atoll.Resources{CPUs: 1}, kind: atoll.ErrUnsupported},
		{name: "no process limit", can: engineInfo{memory: true, cpu: true}, ask: atoll.Resources{Processes: 9}, kind: atoll.ErrUnsupported},
		{name: "no default where there can be none"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.can.enforceableLimits(&atoll.Spec{Resources: tt.ask})
			if atoll.KindOf(err) != tt.kind {
				t.Fatalf("error %v, want kind %q", err, tt.kind)
			}
			if err == nil && (max(got.Memory, 0) != tt.want.Memory || max(got.CPUs, 0) != tt.want.CPUs || max(got.Processes, 0) != tt.want.Processes) {
				t.Errorf("limits are %+v, want %+v", got, tt.want)
			}
		})
	}
}
