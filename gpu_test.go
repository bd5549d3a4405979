package atoll

import (
	"slices"
	"testing"
)

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
