package plugin

import (
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/seed46cd37a8/atoll/internal/secretref"
)

// EncodeSettings returns the settings in a struct, whose fields have yaml tags, as an object
// with those names. Secrets are in it in the clear: it is for the stdin of a program.
func EncodeSettings(table any) (json.RawMessage, error) {
	all := map[string]any{}
	v := reflect.Indirect(reflect.ValueOf(table))
	for i := range v.NumField() {
		name, value := v.Type().Field(i).Tag.Get("yaml"), v.Field(i).Interface()
		if secret, ok := value.(secretref.Ref); ok {
			text, err := secret.Reveal()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			value = text
		}
		if name != "" {
			all[name] = value
		}
	}
	return json.Marshal(all)
}

// DecodeSettings sets the fields of a struct that the object names. A name without a field is
// an error.
func DecodeSettings(data json.RawMessage, table any) error {
	if len(data) == 0 {
		return nil
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	v := reflect.ValueOf(table).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Tag.Get("yaml")
		value, ok := all[name]
		if !ok {
			continue
		}
		delete(all, name)
		field := v.Field(i).Addr().Interface()
		secret, isSecret := field.(*secretref.Ref)
		var text string
		if isSecret {
			field = &text
		}
		if err := json.Unmarshal(value, field); err != nil {
			return fmt.Errorf("settings: %s: %w", name, err)
		}
		if isSecret && text != "" {
			*secret = secretref.New(text)
		}
	}
	for name := range all {
		return fmt.Errorf("settings: unknown setting %s", name)
	}
	return nil
}
