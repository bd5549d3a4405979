package wire

import (
	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/session"
)

// A CreateRequest asks for a sandbox.
type CreateRequest struct {
	atoll.Spec
	SecretValues map[string]string `json:"secret_values,omitempty"` // values of the secrets without a source, by name; the server stores them nowhere
}

// NewCreateRequest returns the request for a sandbox with that spec.
func NewCreateRequest(spec *atoll.Spec) CreateRequest {
	return CreateRequest{Spec: *spec, SecretValues: spec.SecretValues()}
}

// Validate returns the first fault of the spec with its values.
func (r CreateRequest) Validate() error {
	spec, err := r.Complete()
	if err != nil {
		return err
	}
	return spec.Validate()
}

// Complete returns the spec with its values.
func (r CreateRequest) Complete() (*atoll.Spec, error) {
	spec := r.Spec
	return &spec, spec.SetSecretValues(r.SecretValues)
}

// An OpenSessionRequest asks for a session.
type OpenSessionRequest struct {
	session.Spec
	SecretValues map[string]string `json:"secret_values,omitempty"` // values of the secrets of the sandbox without a source, by name; the server stores them nowhere
}

// NewOpenSessionRequest returns the request for a session with that spec.
func NewOpenSessionRequest(spec *session.Spec) OpenSessionRequest {
	return OpenSessionRequest{Spec: *spec, SecretValues: spec.Sandbox.SecretValues()}
}
