// Package strictjson refuses fields of a JSON body that encoding/json takes without a word:
// one that is given twice, of which it takes the last, and one that is spelled otherwise,
// which it takes for the one that folds to the same letters. The bodies of the HTTP API and
// those of extension requests are held to it.
//
// It starts no goroutine and allocates for what is nested only. Errors: [*FieldError].
package strictjson
