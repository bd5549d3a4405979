// Package agent defines the data types of agents and their conversations: conversations,
// messages, turns, sandboxes of agents and their files. The HTTP API, stores and package
// conversation share them.
package agent

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// A Conversation is a sequence of messages, linked with one sandbox. The client chooses its ID,
// which is unique in its Account.
type Conversation struct {
	ID           string    `json:"id"`                     // see ConversationID
	Account      string    `json:"account"`                // the account that owns it
	Organization string    `json:"organization,omitempty"` // the organization of its user
	Agent        string    `json:"agent_id,omitempty"`     // the agent of the conversation; see ValidName
	Template     string    `json:"provider"`               // name of the template of its sandbox
	Sandbox      string    `json:"sandbox_id,omitempty"`   // the linked sandbox
	Stats        Stats     `json:"stats"`                  // messages and tokens so far
	Turn         *Turn     `json:"turn,omitempty"`         // the running turn, if any
	Created      time.Time `json:"created"`                // when it began
	Updated      time.Time `json:"updated"`                // last new message, or last change of the link
}

// ConversationID returns the canonical form of the id of a conversation: a UUID as 32 lower-case
// hex digits, and any other name unchanged. Kinds: ErrInvalid.
func ConversationID(id string) (string, error) {
	if len(id) == 36 && strings.Count(id, "-") == 4 {
		if plain, err := atoll.NormalizeID(id); err == nil {
			return plain, nil
		}
	}
	if !atoll.ValidName(id) {
		return "", atoll.Errorf("conversation", id, atoll.ErrInvalid, "id %q: use a UUID, or a letter or digit and then up to 64 letters, digits, '-' or '_'", id)
	}
	return id, nil
}

// Stats are totals over the messages of a conversation.
type Stats struct {
	MessagesExchanged int64 `json:"messages_exchanged"`  // prompts and answers
	InputTokens       int64 `json:"total_input_tokens"`  // tokens that the model has read
	OutputTokens      int64 `json:"total_output_tokens"` // tokens that the model has written
	CacheTokens       int64 `json:"total_cache_tokens"`  // tokens that came from the model's cache
}

// TokenUsage counts the input and output of models in tokens.
type TokenUsage struct {
	Input  int64 `json:"input_tokens"`  // tokens that the model has read
	Output int64 `json:"output_tokens"` // tokens that the model has written
	Cache  int64 `json:"cache_tokens"`  // input that was read from a cache or written to it; not part of Input
}

// Add adds v to u.
func (u *TokenUsage) Add(v TokenUsage) {
	u.Input += v.Input
	u.Output += v.Output
	u.Cache += v.Cache
}

// A Role is the role of a message's author.
type Role string

// The roles.
const (
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
	RoleTool      Role = "tool" // results of tools that the assistant called
)

// A Message is one message of a conversation.
type Message struct {
	Key          string     `json:"key"`             // unique; a UUID
	Conversation string     `json:"conversation_id"` // the id of the conversation
	Account      string     `json:"-"`
	Turn         string     `json:"turn_id,omitempty"`    // the turn of the message
	Role         Role       `json:"role"`                 // the author
	Body         string     `json:"body"`                 // the text
	Time         time.Time  `json:"timestamp"`            // to the microsecond; later than that of the previous message
	Tokens       TokenUsage `json:"tokens,omitzero"`      // tokens of the answer
	ToolCalls    []ToolCall `json:"tool_calls,omitempty"` // the agent's calls of tools
}

// A ToolCall is a call of a tool in a message of the assistant, or its result in a message of a
// tool.
type ToolCall struct {
	ID     string          `json:"id"`               // as the agent numbers its calls
	Type   string          `json:"type"`             // "function"
	Name   string          `json:"name"`             // of the tool
	Input  json.RawMessage `json:"input,omitempty"`  // JSON
	Output string          `json:"output,omitempty"` // text, or JSON
	Status string          `json:"status,omitempty"` // ToolCalled, ToolCompleted or ToolFailed
	Error  string          `json:"error,omitempty"`  // why the call failed
}

// The values of ToolCall.Status.
const (
	ToolCalled    = "called"
	ToolCompleted = "completed"
	ToolFailed    = "failed"
)

// A Turn is one prompt and the agent's answer. A conversation has at most one Turn at a time.
type Turn struct {
	ID      string    `json:"id"`                   // unique within the conversation
	Server  string    `json:"server"`               // the server that runs it
	Sandbox string    `json:"sandbox_id,omitempty"` // the sandbox of the agent
	Process string    `json:"process_id,omitempty"` // the process of the agent, once it has started
	Raw     bool      `json:"raw,omitempty"`        // the events are the agent's own lines
	Started time.Time `json:"started"`              // when the prompt was accepted
}

// A Prompt starts a turn.
type Prompt struct {
	Conversation string // its id; created if missing
	Sandbox      string // its id or name; created if missing
	Agent        string // of a new conversation; may be ""
	Organization string // of a new conversation; may be ""
	Template     string // of a new conversation; "" means the default template
	Text         string
	Raw          bool // the events are the agent's own lines
}

// A TurnEvent is one event of a turn.
type TurnEvent struct {
	ID   string // "TURN:NUMBER"; a client that sends it back gets the later events
	Data []byte // one line of JSON; in a raw turn, the line of the agent
}

// A Sandbox is the record of a sandbox that was created from a template or linked with a
// conversation. The record outlives the sandbox.
type Sandbox struct {
	ID           string      `json:"id"`                        // id of the sandbox, and of its replacement
	Account      string      `json:"account"`                   // the account that owns it
	Organization string      `json:"organization,omitempty"`    // the organization of its user
	Agent        string      `json:"agent_id,omitempty"`        // the name of the agent
	Template     string      `json:"provider"`                  // name of its template
	External     string      `json:"external_id"`               // the id that its provider uses
	Conversation string      `json:"conversation_id,omitempty"` // the linked conversation
	Meta         SandboxMeta `json:"meta_data"`                 // facts about its files
	Created      time.Time   `json:"created"`                   // when it was created
	Deleted      time.Time   `json:"deleted,omitzero"`          // time of the removal; the record remains
	State        atoll.State `json:"state,omitempty"`           // state at the time of the query, not stored; StateRemoved if the sandbox does not exist
}

// DeleteOptions say how to delete a conversation or a sandbox.
type DeleteOptions struct {
	Sandbox SandboxFate // of the sandbox of a conversation; the default removes one that was created for an agent, and keeps any other
	Force   bool        // delete it even if its files cannot be pushed
}

// A SandboxFate says what happens to the sandbox of a conversation that is deleted.
type SandboxFate string

// The fates.
const (
	SandboxRemove SandboxFate = "remove"
	SandboxKeep   SandboxFate = "keep"
)

// A Deletion is the result of a deletion.
type Deletion struct {
	Sandbox  string       `json:"sandbox_id,omitempty"` // id of the sandbox; "" if there is none
	Outcome  SandboxState `json:"sandbox"`              // whether everything was deleted
	Version  int64        `json:"version,omitempty"`    // of the files, as pushed before the removal; 0 if nothing was pushed
	Warnings []string     `json:"warnings,omitempty"`   // what did not work; the deletion is done
}

// A SandboxState is the state of a sandbox after a deletion.
type SandboxState string

// The states.
const (
	SandboxRemoved SandboxState = "removed"
	SandboxKept    SandboxState = "kept"
	SandboxNone    SandboxState = "none" // there was none
)

// SandboxMeta describes the last sync of the files of a sandbox.
type SandboxMeta struct {
	LastSync  int64      `json:"last_s3_sync,omitempty"` // in seconds since 1970; 0 means never
	SyncStats *SyncStats `json:"sync_stats,omitempty"`   // result of the last sync
	SyncError string     `json:"sync_error,omitempty"`   // error of the last attempt, if it failed
}

// SyncStats are the results of a push to object storage or a pull from it.
type SyncStats struct {
	Version          int64 `json:"version,omitempty"`   // the current version; 0 if there is none
	FilesDownloaded  int   `json:"files_downloaded"`    // number of files that came from the store
	FilesUploaded    int   `json:"files_uploaded"`      // number of files that went to the store
	FilesDeleted     int   `json:"files_deleted"`       // number of files that were deleted
	FilesSkipped     int   `json:"files_skipped"`       // number of files that were left out
	BytesTransferred int64 `json:"bytes_transferred"`   // size of all transferred files
	Duration         int64 `json:"duration_ms"`         // how long the sync took
	Conflicts        int   `json:"conflicts,omitempty"` // files that changed on both sides
	Failed           int   `json:"failed,omitempty"`    // files that failed to be read or written
}

// The sources of files of a Sandbox.
const (
	SourceVolume = "volume" // the sandbox itself
	SourceS3     = "s3"     // the latest version in object storage, whether or not the sandbox exists
)

// A FileQuery selects files.
type FileQuery struct {
	Source  string // SourceVolume or SourceS3
	Path    string // relative to the synced directory; "" means that directory
	Flat    bool   // omit files in directories below
	Page    int    // from 1
	PerPage int    // 1..1000
}

// A File is a file of a Sandbox.
type File struct {
	Name      string `json:"name"`               // the last element of the path
	Path      string `json:"path"`               // relative to the synced directory
	Size      int64  `json:"size"`               // in bytes
	Modified  int64  `json:"modified_at"`        // in seconds since 1970
	Directory bool   `json:"is_directory"`       // it is a directory
	Checksum  string `json:"checksum,omitempty"` // hex MD5, for files in object storage
	Target    string `json:"target,omitempty"`   // of a symbolic link
	Children  []File `json:"children,omitempty"` // only in a tree
}

// A FilePage is a page of a list of files, sorted by path.
type FilePage struct {
	Files      []File `json:"files"`       // of this page
	Total      int    `json:"total_count"` // number of files of all pages
	Page       int    `json:"page"`        // number of this page, from 1
	PerPage    int    `json:"per_page"`    // most files of a page
	TotalPages int    `json:"total_pages"` // number of pages
}

// A SandboxVersion is a version of the files of a Sandbox in object storage.
type SandboxVersion struct {
	Version int64     `json:"version"`          // the number of the version
	Latest  bool      `json:"latest,omitempty"` // it is the newest version
	Pushed  time.Time `json:"pushed"`           // when it was stored
}

// Labels of the sandboxes of conversations.
const (
	LabelAccount  = "account"
	LabelTemplate = "template"
)
