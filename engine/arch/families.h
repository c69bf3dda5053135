/* families.h - the list of model families; each is defined in engine/arch/NAME_names.c. Private to engine/arch/. */
#ifndef PP_ENGINE_ARCH_FAMILIES_H
#define PP_ENGINE_ARCH_FAMILIES_H

#include "engine/arch/arch.h"

extern const struct pp_arch pp_arch_llama;

#endif
