package document

import "github.com/granarydb/granary/chunkstore/mongoerr"

// Codes of MongoDB that only this package answers with.
const (
	cannotBackfillArray     mongoerr.Code = 34
	notSingleValueField     mongoerr.Code = 54
	invalidPipelineOperator mongoerr.Code = 168
	updateTooLarge          mongoerr.Code = 17419
)
