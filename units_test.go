package atoll

import (
	"encoding/json"
	"slices"
	"testing"
	"time"
)

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
