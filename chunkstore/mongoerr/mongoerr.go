// Package mongoerr holds MongoDB's error codes as far as this system answers with them:
// the one type that carries a code from where a rule is broken to the client's driver.
//
// A driver acts on the code and the labels, a person reads the text. Both are MongoDB's
// where MongoDB has them, so that what people know of it stays true here. Errors inside the
// system are kinds of errkind instead; the router turns those that reach a client into one
// of these.
package mongoerr

import "fmt"

// Code is a MongoDB server error code; its String is the codeName.
type Code int32

// The codes in use, numbers and names as in MongoDB's error_codes.yml.
const (
	InternalError              Code = 1
	BadValue                   Code = 2
	NoSuchKey                  Code = 4
	HostUnreachable            Code = 6
	HostNotFound               Code = 7
	UnknownError               Code = 8
	FailedToParse              Code = 9
	Unauthorized               Code = 13
	TypeMismatch               Code = 14
	ProtocolError              Code = 17
	AlreadyInitialized         Code = 23
	CannotBackfillArray        Code = 34
	NotSingleValueField        Code = 54
	InvalidPipelineOperator    Code = 168
	ZoneStillInUse             Code = 163
	ZoneNotFound               Code = 177
	RangeOverlapConflict       Code = 178
	InvalidIndexOption         Code = 197 // InvalidIndexSpecificationOption
	ConversionFailure          Code = 241
	UnsupportedOpQueryCommand  Code = 352
	Overflow                   Code = 15
	InvalidLength              Code = 16
	IllegalOperation           Code = 20
	InvalidBSON                Code = 22
	NamespaceNotFound          Code = 26
	IndexNotFound              Code = 27
	PathNotViable              Code = 28
	ConflictingUpdateOperators Code = 40
	CursorNotFound             Code = 43
	NamespaceExists            Code = 48
	MaxTimeMSExpired           Code = 50
	DollarPrefixedFieldName    Code = 52
	InvalidIDField             Code = 53
	EmptyFieldName             Code = 56
	CommandNotFound            Code = 59
	ShardKeyNotFound           Code = 61
	WriteConcernFailed         Code = 64
	ImmutableField             Code = 66
	CannotCreateIndex          Code = 67
	IndexAlreadyExists         Code = 68
	ShardNotFound              Code = 70
	InvalidOptions             Code = 72
	InvalidNamespace           Code = 73
	IndexOptionsConflict       Code = 85
	IndexKeySpecsConflict      Code = 86
	NetworkTimeout             Code = 89
	ShutdownInProgress         Code = 91
	QueryPlanKilled            Code = 175
	OperationFailed            Code = 96
	WriteConflict              Code = 112
	ConflictingOperationInProg Code = 117
	NamespaceNotSharded        Code = 118
	CommandNotSupported        Code = 115
	CommandNotSupportedOnView  Code = 166
	InterruptedAtShutdown      Code = 11600
	Interrupted                Code = 11601
	SnapshotUnavailable        Code = 246
	NoSuchTransaction          Code = 251
	TransactionTooOld          Code = 225
	QueryExceededMemoryLimit   Code = 292
	ExceededTimeLimit          Code = 262
	NotWritablePrimary         Code = 10107
	BSONObjectTooLarge         Code = 10334
	DuplicateKey               Code = 11000
	StaleConfig                Code = 13388
	RetryableInternal          Code = 189 // PrimarySteppedDown: every driver retries it
	UnknownPipelineStage       Code = 40324
	Location51091              Code = 51091
	DataCorruptionDetected     Code = 242
	OutOfDiskSpace             Code = 14031
	NoSuchReshardCollection    Code = 339
	ReshardCollectionCommitted Code = 340
	ReshardCollectionAborted   Code = 341
)

var names = map[Code]string{
	NoSuchReshardCollection: "NoSuchReshardCollection", ReshardCollectionCommitted: "ReshardCollectionCommitted", ReshardCollectionAborted: "ReshardCollectionAborted",
	ProtocolError: "ProtocolError", AlreadyInitialized: "AlreadyInitialized", CannotBackfillArray: "CannotBackfillArray",
	NotSingleValueField: "NotSingleValueField", InvalidPipelineOperator: "InvalidPipelineOperator",
	ConversionFailure: "ConversionFailure", UnsupportedOpQueryCommand: "UnsupportedOpQueryCommand",
	QueryPlanKilled: "QueryPlanKilled",
	InternalError:   "InternalError", BadValue: "BadValue", NoSuchKey: "NoSuchKey",
	HostUnreachable: "HostUnreachable", HostNotFound: "HostNotFound", UnknownError: "UnknownError",
	FailedToParse: "FailedToParse", Unauthorized: "Unauthorized", TypeMismatch: "TypeMismatch",
	Overflow: "Overflow", InvalidLength: "InvalidLength", IllegalOperation: "IllegalOperation",
	InvalidBSON: "InvalidBSON", NamespaceNotFound: "NamespaceNotFound", IndexNotFound: "IndexNotFound",
	PathNotViable: "PathNotViable", ConflictingUpdateOperators: "ConflictingUpdateOperators",
	CursorNotFound: "CursorNotFound", NamespaceExists: "NamespaceExists",
	MaxTimeMSExpired: "MaxTimeMSExpired", DollarPrefixedFieldName: "DollarPrefixedFieldName",
	InvalidIDField: "InvalidIdField", EmptyFieldName: "EmptyFieldName",
	CommandNotFound: "CommandNotFound", ShardKeyNotFound: "ShardKeyNotFound",
	WriteConcernFailed: "WriteConcernFailed", ImmutableField: "ImmutableField",
	CannotCreateIndex: "CannotCreateIndex", IndexAlreadyExists: "IndexAlreadyExists",
	ShardNotFound: "ShardNotFound", InvalidOptions: "InvalidOptions",
	InvalidNamespace: "InvalidNamespace", IndexOptionsConflict: "IndexOptionsConflict",
	IndexKeySpecsConflict: "IndexKeySpecsConflict", InvalidIndexOption: "InvalidIndexSpecificationOption", NetworkTimeout: "NetworkTimeout",
	ShutdownInProgress: "ShutdownInProgress", OperationFailed: "OperationFailed",
	WriteConflict: "WriteConflict", ConflictingOperationInProg: "ConflictingOperationInProgress",
	NamespaceNotSharded: "NamespaceNotSharded", CommandNotSupported: "CommandNotSupported",
	CommandNotSupportedOnView: "CommandNotSupportedOnView",
	InterruptedAtShutdown:     "InterruptedAtShutdown", Interrupted: "Interrupted",
	SnapshotUnavailable: "SnapshotUnavailable", NoSuchTransaction: "NoSuchTransaction",
	TransactionTooOld: "TransactionTooOld", QueryExceededMemoryLimit: "QueryExceededMemoryLimitNoDiskUseAllowed",
	ExceededTimeLimit: "ExceededTimeLimit", NotWritablePrimary: "NotWritablePrimary",
	BSONObjectTooLarge: "BSONObjectTooLarge", DuplicateKey: "DuplicateKey",
	StaleConfig: "StaleConfig", RetryableInternal: "PrimarySteppedDown",
	UnknownPipelineStage: "Location40324", Location51091: "Location51091",
	ZoneStillInUse: "ZoneStillInUse", ZoneNotFound: "ZoneNotFound", RangeOverlapConflict: "RangeOverlapConflict",
	DataCorruptionDetected: "DataCorruptionDetected", OutOfDiskSpace: "OutOfDiskSpace",
}

// String is the codeName that drivers and mongosh show; codes without a name of their own
// are called Location<number>, as MongoDB does.
func (c Code) String() string {
	if n, ok := names[c]; ok {
		return n
	}
	return fmt.Sprintf("Location%d", int32(c))
}

// Error is a failure that a client sees: code, text, and the labels that drivers act on
// (RetryableWriteError, ...). Info holds extra BSON fields of the error document, already
// encoded as a document (keyPattern and keyValue of a DuplicateKey), or nil.
type Error struct {
	Code    Code
	Message string
	Labels  []string
	Info    []byte
}

// New makes an Error with a formatted message.
func New(c Code, format string, args ...any) *Error {
	return &Error{Code: c, Message: fmt.Sprintf(format, args...)}
}

// Error is "CodeName: message".
func (e *Error) Error() string { return e.Code.String() + ": " + e.Message }
