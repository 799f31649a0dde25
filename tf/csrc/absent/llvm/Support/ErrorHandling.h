// See Casting.h.
#pragma once
