package atoll

import (
	"encoding"
	"encoding/json"
	"errors"
	"reflect"
)

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
