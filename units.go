package atoll

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// A Duration is a time.Duration that reads and prints as text ("90s", "1h30m",
// "never") in JSON, YAML and flags; a number is read as seconds.
type Duration time.Duration

// Durations with a meaning.
const (
	Never           Duration = -1                  // lifts a limit
	DefaultIdleStop          = Duration(time.Hour) // where Caps.IdleStop
)

// String prints d as time.Duration does, and Never as "never".
func (d Duration) String() string {
	if d == Never {
		return "never"
	}
	return time.Duration(d).String()
}

// MarshalText prints d as String does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText accepts what time.ParseDuration accepts, a bare number as
// seconds, and "never".
func (d *Duration) UnmarshalText(b []byte) error {
	s := string(b)
	if s == Never.String() {
		*d = Never
		return nil
	}
	const most = float64(1<<63-1) / float64(time.Second)
	if n, err := strconv.ParseFloat(s, 64); err == nil && n > -most && n < most {
		*d = Duration(n * float64(time.Second))
		return nil
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("duration %q: write it like 90s, 5m or 1h30m", s)
	}
	*d = Duration(v)
	return nil
}

// Bytes is a size. In JSON it is a number of bytes; ParseBytes reads the units
// that people write.
type Bytes int64

var byteUnits = map[string]int64{
	"": 1, "b": 1,
	"k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10,
	"m": 1 << 20, "mb": 1 << 20, "mib": 1 << 20,
	"g": 1 << 30, "gb": 1 << 30, "gib": 1 << 30,
	"t": 1 << 40, "tb": 1 << 40, "tib": 1 << 40,
}

// ParseBytes reads "512m", "2GiB", "1.5g", "1048576"; units are powers of
// 1024, as docker's are. "unlimited" and "-1" are Unlimited.
func ParseBytes(s string) (Bytes, error) {
	t := strings.ToLower(strings.TrimSpace(s))
	if t == "unlimited" || t == "-1" {
		return Unlimited, nil
	}
	i := strings.IndexFunc(t, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if i < 0 {
		i = len(t)
	}
	n, err := strconv.ParseFloat(t[:i], 64)
	unit, ok := byteUnits[strings.TrimSpace(t[i:])]
	if err != nil || !ok || n*float64(unit) >= 1<<62 {
		return 0, fmt.Errorf("size %q: write it like 512m or 2g", s)
	}
	return Bytes(n * float64(unit)), nil
}

// String prints b in the largest unit that divides it.
func (b Bytes) String() string {
	if b == Unlimited {
		return "unlimited"
	}
	for _, u := range []struct {
		n    Bytes
		name string
	}{{1 << 40, "t"}, {1 << 30, "g"}, {1 << 20, "m"}, {1 << 10, "k"}} {
		if b >= u.n && b%u.n == 0 {
			return strconv.FormatInt(int64(b/u.n), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// GPUs says which GPUs of its machine a sandbox has: none (""), "all", so many
// of them ("2"), or certain ones by their driver's ids ("device=0,GPU-3a23c669").
// It is what docker's --gpus takes.
type GPUs string

// Devices returns how many GPUs are asked for, -1 being all, or else the ids of
// those that are. It fails when g is none of the forms.
func (g GPUs) Devices() (count int, ids []string, err error) {
	switch g {
	case "":
		return 0, nil, nil
	case "all":
		return -1, nil, nil
	}
	if list, ok := strings.CutPrefix(string(g), "device="); ok {
		ids = strings.Split(list, ",")
		for _, id := range ids {
			if id == "" || strings.Trim(id, gpuChars) != "" {
				return 0, nil, fmt.Errorf("gpus %q: write the ids of devices like device=0,1", g)
			}
		}
		return 0, ids, nil
	}
	n, err := strconv.ParseUint(string(g), 10, 16)
	if err != nil || n == 0 {
		return 0, nil, fmt.Errorf("gpus %q: write all, how many, or which, like device=0,1", g)
	}
	return int(n), nil, nil
}

// gpuChars are those of drivers' ids, as of "MIG-GPU-3a23c669/0/0".
const gpuChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:"

// UnmarshalJSON accepts a string, of what UnmarshalText accepts, and a number of
// seconds.
func (d *Duration) UnmarshalJSON(b []byte) error { return textFromJSON(b, d) }

// UnmarshalJSON accepts a string, of what UnmarshalText accepts, and a number.
func (s *Signal) UnmarshalJSON(b []byte) error { return textFromJSON(b, s) }

// textFromJSON lets v be written as a string or as a number.
func textFromJSON(b []byte, v encoding.TextUnmarshaler) error {
	if len(b) > 0 && (b[0] == '-' || '0' <= b[0] && b[0] <= '9') {
		return v.UnmarshalText(b)
	}
	var s *string
	if err := json.Unmarshal(b, &s); err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			wrong.Type = reflect.TypeOf(v).Elem()
		}
		return err
	}
	if s == nil { // null says nothing
		return nil
	}
	return v.UnmarshalText([]byte(*s))
}

var (
	_ json.Unmarshaler = (*Duration)(nil)
	_ json.Unmarshaler = (*Signal)(nil)
)
