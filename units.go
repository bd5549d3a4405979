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

// A Duration is a time.Duration whose form in JSON, YAML and flags is text ("90s", "1h30m",
// "never"). A number means seconds.
type Duration time.Duration

// Special durations.
const (
	Never           Duration = -1                  // disables a limit
	DefaultIdleStop          = Duration(time.Hour) // the default of Spec.IdleStop with Caps.IdleStop
)

// String returns "never" for Never, or else what time.Duration.String returns.
func (d Duration) String() string {
	if d == Never {
		return "never"
	}
	return time.Duration(d).String()
}

// MarshalText returns the result of String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText accepts "never", the forms of [time.ParseDuration], before which weeks (w) and days
// (d) of 24 hours may stand, and a number of seconds.
func (d *Duration) UnmarshalText(b []byte) error {
	s := string(b)
	if s == Never.String() {
		*d = Never
		return nil
	}
	const limit = float64(1<<63-1) / float64(time.Second)
	if n, err := strconv.ParseFloat(s, 64); err == nil && n > -limit && n < limit {
		*d = Duration(n * float64(time.Second))
		return nil
	}
	v, err := parseDuration(s)
	if err != nil {
		return fmt.Errorf("duration %q: write it like 90s, 5m, 1h30m or 2d", s)
	}
	*d = Duration(v)
	return nil
}

// parseDuration is time.ParseDuration with whole weeks and days at the beginning, as in 1w2d12h.
func parseDuration(s string) (time.Duration, error) {
	const day = 24 * time.Hour
	days, rest := time.Duration(0), s
	for _, unit := range []struct {
		name string
		size time.Duration
	}{{"w", 7 * day}, {"d", day}} {
		digits, after, ok := strings.Cut(rest, unit.name)
		n, err := strconv.ParseUint(digits, 10, 13) // up to 8191, so that the sum does not overflow
		if ok && err == nil {
			days, rest = days+time.Duration(n)*unit.size, after
		}
	}
	if rest == "" && s != "" {
		return days, nil
	}
	v, err := time.ParseDuration(rest)
	if err == nil && rest != s && (v < 0 || v > 1<<61) {
		err = errors.New("out of range")
	}
	return days + v, err
}

// Bytes is a size. In JSON it is a number of bytes. ParseBytes accepts units.
type Bytes int64

var byteUnits = map[string]int64{
	"": 1, "b": 1,
	"k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10,
	"m": 1 << 20, "mb": 1 << 20, "mib": 1 << 20,
	"g": 1 << 30, "gb": 1 << 30, "gib": 1 << 30,
	"t": 1 << 40, "tb": 1 << 40, "tib": 1 << 40,
}

// ParseBytes parses a size such as "512m", "2GiB", "1.5g" or "1048576". Units are powers of 1024,
// as in Docker. "unlimited" and "-1" mean Unlimited.
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

// String returns b in the largest unit that divides it.
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

// GPUs selects GPUs of the machine, in the format of Docker's --gpus: "" for none, "all", a
// number ("2"), or ids of the driver ("device=0,GPU-3a23c669").
type GPUs string

// Devices returns the number of requested GPUs, where -1 means all, or the ids of specific ones.
// It fails if g has none of these forms.
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
				return 0, nil, fmt.Errorf("gpus %q: write device ids like device=0,1", g)
			}
		}
		return 0, ids, nil
	}
	n, err := strconv.ParseUint(string(g), 10, 16)
	if err != nil || n == 0 {
		return 0, nil, fmt.Errorf("gpus %q: use all, a number, or ids like device=0,1", g)
	}
	return int(n), nil, nil
}

// gpuChars are the characters in GPU ids of drivers, such as "MIG-GPU-3a23c669/0/0".
const gpuChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:"

// UnmarshalJSON accepts the strings that UnmarshalText accepts, and a number of seconds.
func (d *Duration) UnmarshalJSON(b []byte) error { return textFromJSON(b, d) }

// UnmarshalJSON accepts the strings that UnmarshalText accepts, and a number.
func (s *Signal) UnmarshalJSON(b []byte) error { return textFromJSON(b, s) }

// textFromJSON unmarshals a JSON string or number into v.
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
	if s == nil { // null leaves v unchanged
		return nil
	}
	return v.UnmarshalText([]byte(*s))
}

var (
	_ json.Unmarshaler = (*Duration)(nil)
	_ json.Unmarshaler = (*Signal)(nil)
)
